"""Queries about batches. Each change of state is one conditional update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from gristmill.errors import LineError
from gristmill.histogram import Histogram
from gristmill.ledger import webhook_events
from gristmill.ledger.batch import Batch, Submission, batch_from_row
from gristmill.ledger.batch_times import BatchTimes
from gristmill.ledger.schema import batches, shards
from gristmill.ledger.status import (
    EDGES,
    END_OF,
    FREEZES_FROM,
    OPEN,
    BatchStatus,
    FreezeReason,
)
from gristmill.types import Endpoint, ModelPin, Usage

#: What is never due stands behind all that is.
NEVER = 2**62


def create(
    conn: Connection,
    tenant_id: str,
    batch_id: str,
    *,
    run_id: str,
    model: ModelPin,
    seed: str,
    input_fingerprint: str,
    options: Mapping[str, Any],
    created_at: int,
    expires_at: int | None,
    submission: Submission | None = None,
) -> None:
    """A new batch, in `validating`. Without a submission its first row decides the endpoint."""
    asked = {} if submission is None else asdict(submission)
    conn.execute(
        insert(batches).values(
            rank=-asked.pop("priority", 0),
            due_at=NEVER if expires_at is None else expires_at,
            **asked,
            id=batch_id,
            tenant_id=tenant_id,
            status=BatchStatus.VALIDATING,
            model_name=model.name,
            model_revision=model.revision,
            tokenizer_hash=model.tokenizer_hash,
            dtype=model.dtype,
            seed=seed,
            input_fingerprint=input_fingerprint,
            options=dict(options),
            run_id=run_id,
            ttft={},
            itl={},
            errors=[],
            created_at=created_at,
            expires_at=expires_at,
        )
    )


def get(
    conn: Connection, tenant_id: str, batch_id: str, *, for_update: bool = False
) -> Batch | None:
    """With `for_update` nobody else changes the batch until this transaction ends."""
    query = select(batches).where(
        batches.c.id == batch_id,
        batches.c.tenant_id == tenant_id,
        batches.c.deleted_at.is_(None),
    )
    row = conn.execute(query.with_for_update() if for_update else query).mappings().one_or_none()
    return None if row is None else batch_from_row(row)


def list_newest(conn: Connection, tenant_id: str, *, limit: int = 20) -> list[Batch]:
    """The batches of a tenant, the newest first."""
    query = (
        select(batches)
        .where(batches.c.tenant_id == tenant_id, batches.c.deleted_at.is_(None))
        .order_by(batches.c.created_at.desc(), batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def pin_model(
    conn: Connection, batch: Batch, *, model: ModelPin, options: Mapping[str, Any]
) -> bool:
    """Decide the model of a batch that was created without. False when that was done before."""
    return _change(
        conn,
        batch.tenant_id,
        batch.id,
        batches.c.status == BatchStatus.VALIDATING,
        batches.c.model_name == "",
        values={
            "model_name": model.name,
            "model_revision": model.revision,
            "tokenizer_hash": model.tokenizer_hash,
            "dtype": model.dtype,
            "options": {**batch.options, **options},
        },
    )


def list_open(conn: Connection, *, after_id: str = "", limit: int = 100) -> list[Batch]:
    """Batches of all tenants that are not at their end: for the sweep, never for a caller."""
    query = (
        select(batches)
        .where(batches.c.status.in_(OPEN), batches.c.id > after_id)
        .order_by(batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def advance_ingest(
    conn: Connection,
    batch: Batch,
    *,
    endpoint: Endpoint,
    byte_offset: int,
    line_no: int,
    row_idx: int,
    num_new_shards: int,
    num_new_tokens: int = 0,
) -> bool:
    """One more slice was read. False when another ingest was faster, or the batch has ended."""
    return _change(
        conn,
        batch.tenant_id,
        batch.id,
        batches.c.status == BatchStatus.VALIDATING,
        batches.c.freeze_reason.is_(None),
        batches.c.ingest_byte_offset == batch.ingest_byte_offset,
        values={
            "endpoint": endpoint,
            "ingest_byte_offset": byte_offset,
            "ingest_line_no": line_no,
            "ingest_row_idx": row_idx,
            "num_slices": batch.num_slices + 1,
            "num_shards": batch.num_shards + num_new_shards,
            "expected_tokens": batch.expected_tokens + num_new_tokens,
            "total": row_idx,
        },
    )


def transition(conn: Connection, tenant_id: str, batch_id: str, to: BatchStatus, now: int) -> bool:
    """Go along an edge. False when there is none from the present status, or it is frozen."""
    sources = [status for status, targets in EDGES.items() if to in targets]
    return _change(
        conn,
        tenant_id,
        batch_id,
        batches.c.status.in_(sources),
        batches.c.freeze_reason.is_(None),
        values={"status": to, f"{to}_at": now},
    )


def fail_validation(
    conn: Connection,
    tenant_id: str,
    batch_id: str,
    *,
    errors: tuple[LineError, ...],
    num_errors: int,
    now: int,
    remove_work_at: int | None = None,
) -> bool:
    """The input is refused as a whole: no row of it was ever due."""
    if not transition(conn, tenant_id, batch_id, BatchStatus.FAILED, now):
        return False
    webhook_events.record_end(conn, tenant_id, batch_id, BatchStatus.FAILED, now=now)
    return _change(
        conn,
        tenant_id,
        batch_id,
        values={
            "errors": [asdict(error) for error in errors],
            "num_errors": num_errors,
            "remove_work_at": remove_work_at,
            **dict.fromkeys(("total", "completed", "failed"), 0),
        },
    )


def record_accepted(
    conn: Connection,
    batch: Batch,
    *,
    completed: int,
    failed: int,
    usage: Usage,
    ttft: Histogram,
    itl: Histogram,
    times: BatchTimes,
    last_accepted: int,
    budget_used_at: int | None = None,
) -> None:
    """Add what was accepted to a batch that this transaction has read `for_update`."""
    total_usage = batch.usage + usage
    total_ttft, total_itl = Histogram(batch.ttft.counts), Histogram(batch.itl.counts)
    total_ttft.merge(ttft)
    total_itl.merge(itl)
    times.merge(batch.times)
    _change(
        conn,
        batch.tenant_id,
        batch.id,
        values={
            "completed": batch.completed + completed,
            "failed": batch.failed + failed,
            **asdict(total_usage),
            "ttft": total_ttft.to_wire(),
            "itl": total_itl.to_wire(),
            "times": times.to_wire(),
            "last_accepted": last_accepted,
            "budget_used_at": budget_used_at,
        },
    )


def freeze(conn: Connection, tenant_id: str, batch_id: str, reason: FreezeReason, now: int) -> bool:
    """From now on nothing is accepted. False when the batch is frozen or not in such a state.

    A batch that ran to its end, or out of its budget, shows as `finalizing`; one that expired or
    was cancelled keeps its status until its files are there.
    """
    of_batch = shards.c.tenant_id == tenant_id, shards.c.batch_id == batch_id
    first_sent_at = select(func.min(shards.c.sent_at)).where(*of_batch).scalar_subquery()
    values: dict[str, Any] = {"freeze_reason": reason, "first_sent_at": first_sent_at}
    if END_OF[reason] is BatchStatus.COMPLETED:
        values |= {"status": BatchStatus.FINALIZING, "finalizing_at": now}
    return _change(
        conn,
        tenant_id,
        batch_id,
        batches.c.status.in_(FREEZES_FROM[reason]),
        batches.c.freeze_reason.is_(None),
        values=values,
    )


def advance_merge(
    conn: Connection, batch: Batch, *, num_output_lines: int, num_error_lines: int
) -> bool:
    """The pieces of one more slice lie in the Store. False when another finalize was faster."""
    return _change(
        conn,
        batch.tenant_id,
        batch.id,
        batches.c.merged_slices == batch.merged_slices,
        values={
            "merged_slices": batch.merged_slices + 1,
            "num_output_lines": batch.num_output_lines + num_output_lines,
            "num_error_lines": batch.num_error_lines + num_error_lines,
        },
    )


def publish(
    conn: Connection,
    batch: Batch,
    *,
    output_file_id: str | None,
    error_file_id: str | None,
    now: int,
    remove_work_at: int | None = None,
) -> bool:
    """The result files become the batch's, and it reaches its end. False when it has already."""
    assert batch.freeze_reason is not None, "only a frozen batch is published"
    end = END_OF[batch.freeze_reason]
    is_published = _change(
        conn,
        batch.tenant_id,
        batch.id,
        batches.c.status.in_([s for s, targets in EDGES.items() if end in targets]),
        values={
            "status": end,
            f"{end}_at": now,
            "total": batch.num_output_lines + batch.num_error_lines,
            "completed": batch.num_output_lines,
            "failed": batch.num_error_lines,
            "output_file_id": output_file_id,
            "error_file_id": error_file_id,
            "remove_work_at": remove_work_at,
        },
    )
    if is_published:
        webhook_events.record_end(conn, batch.tenant_id, batch.id, end, now=now)
    return is_published


def _change(
    conn: Connection,
    tenant_id: str,
    batch_id: str,
    *conditions: ColumnElement[bool],
    values: Mapping[str, Any],
) -> bool:
    statement = update(batches).where(
        batches.c.id == batch_id, batches.c.tenant_id == tenant_id, *conditions
    )
    return conn.execute(statement.values(**values)).rowcount == 1
