"""Puts into the Ledger what the Store says: only for rebuilding it, never for a caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from gristmill.ledger import life, usage
from gristmill.ledger import shards as shard_queries
from gristmill.ledger.batch import Batch
from gristmill.ledger.files import File
from gristmill.ledger.schema import batches, files
from gristmill.ledger.shards import NewShard
from gristmill.ledger.status import ENDS, BatchStatus
from gristmill.types import Endpoint, ModelPin


def list_batch_ids(conn: Connection) -> list[tuple[str, str]]:
    """(tenant, batch) of all that were submitted through the API and are not deleted."""
    query = select(batches.c.tenant_id, batches.c.id).where(
        batches.c.input_file_id.is_not(None), batches.c.deleted_at.is_(None)
    )
    return [(row.tenant_id, row.id) for row in conn.execute(query)]


def put_ended(
    conn: Connection, row: Mapping[str, Any], of_batch: Sequence[File], *, remove_work_at: int
) -> None:
    """The row of a batch at its end, instead of what is there, and those of its files."""
    values = {name: value for name, value in row.items() if name in batches.c}
    life.delete_work(conn, values["tenant_id"], values["id"])
    conn.execute(
        delete(batches).where(
            batches.c.tenant_id == values["tenant_id"], batches.c.id == values["id"]
        )
    )
    conn.execute(insert(batches).values(**values | {"remove_work_at": remove_work_at}))
    if values["in_progress_at"] is not None:
        usage.settle(conn, values)
    for file in of_batch:
        put_file(conn, file)


def put_ingested(
    conn: Connection,
    batch: Batch,
    slices: Sequence[Sequence[NewShard]],
    *,
    endpoint: Endpoint,
    model: ModelPin,
    options: Mapping[str, Any],
    total: int,
    now: int,
) -> None:
    """The batch as it was when all of its input was read and no row had a result."""
    life.delete_work(conn, batch.tenant_id, batch.id)
    # What was counted so far is counted again, Segment by Segment.
    usage.forget(conn, batch.tenant_id, batch.id)
    is_cancelling = batch.status is BatchStatus.CANCELLING
    nothing_yet = (
        *("completed", "failed", "prompt_tokens", "completion_tokens", "cached_tokens"),
        *("last_accepted", "merged_slices", "num_output_lines", "num_error_lines"),
    )
    statement = update(batches).where(
        batches.c.tenant_id == batch.tenant_id, batches.c.id == batch.id
    )
    conn.execute(
        statement.values(
            status=BatchStatus.CANCELLING if is_cancelling else BatchStatus.IN_PROGRESS,
            freeze_reason=None,
            endpoint=endpoint,
            model_name=model.name,
            model_revision=model.revision,
            tokenizer_hash=model.tokenizer_hash,
            dtype=model.dtype,
            options=dict(options),
            num_slices=len(slices),
            num_shards=sum(map(len, slices)),
            total=total,
            expected_tokens=sum(shard.num_expected_tokens for new in slices for shard in new),
            budget_used_at=None,
            ingest_row_idx=total,
            ttft={},
            itl={},
            in_progress_at=batch.in_progress_at or now,
            **dict.fromkeys(nothing_yet, 0),
        )
    )
    for slice_n, new in enumerate(slices):
        shard_queries.add(conn, batch.tenant_id, batch.id, slice_n, new)


def put_file(conn: Connection, file: File) -> bool:
    """False when the Ledger knows it, or has known it."""
    if conn.execute(select(files.c.id).where(files.c.id == file.id)).first() is not None:
        return False
    conn.execute(insert(files).values(**asdict(file)))
    return True


def list_files(conn: Connection, *, after_id: str, limit: int) -> list[File]:
    """Files of all tenants that are not deleted, by id."""
    query = (
        select(files)
        .where(files.c.deleted_at.is_(None), files.c.id > after_id)
        .order_by(files.c.id)
        .limit(limit)
    )
    return [File(**row) for row in conn.execute(query).mappings()]


def lose_batch(conn: Connection, tenant_id: str, batch_id: str, *, now: int) -> None:
    """A batch that was deleted after this Ledger was copied."""
    of_batch = batches.c.tenant_id == tenant_id, batches.c.id == batch_id
    is_open = batches.c.status.not_in(ENDS)
    conn.execute(
        update(batches)
        .where(*of_batch, is_open)
        .values(status=BatchStatus.CANCELLED, cancelled_at=now)
    )
    conn.execute(update(batches).where(*of_batch).values(deleted_at=now, remove_work_at=now))
