"""Queries about batches behind their end: run again, deleted, their work removed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gristmill.ledger import courses
from gristmill.ledger.batch import Batch, batch_from_row
from gristmill.ledger.schema import batches, chores, segments, shards
from gristmill.ledger.schema_dispatch import size_classes
from gristmill.ledger.status import ENDS, BatchStatus


def find_retry(conn: Connection, tenant_id: str, batch_id: str) -> Batch | None:
    """The batch that runs the rows of this one again. One that could not read them is none."""
    query = (
        select(batches)
        .where(
            batches.c.tenant_id == tenant_id,
            batches.c.retry_of == batch_id,
            batches.c.status != BatchStatus.FAILED,
            batches.c.deleted_at.is_(None),
        )
        .order_by(batches.c.created_at.desc(), batches.c.id.desc())
        .limit(1)
    )
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else batch_from_row(row)


def hide(conn: Connection, tenant_id: str, batch_id: str, *, now: int, remove_work_at: int) -> bool:
    """Its owner does not see the batch any more, and what he said of it is forgotten.

    False when there is none, or it has not ended. Its counts stay, for what was used.
    """
    statement = update(batches).where(
        batches.c.tenant_id == tenant_id,
        batches.c.id == batch_id,
        batches.c.status.in_(ENDS),
        batches.c.deleted_at.is_(None),
    )
    values: dict[str, Any] = dict.fromkeys(("metadata", "idempotency_key", "request_digest"))
    values |= {"deleted_at": now, "remove_work_at": remove_work_at, "errors": []}
    is_hidden = conn.execute(statement.values(**values)).rowcount == 1
    if is_hidden:
        courses.forget(conn, tenant_id, batch_id)
    return is_hidden


def list_to_remove(conn: Connection, *, now: int, limit: int) -> list[Batch]:
    """Batches of all tenants whose work nobody needs any more: for the sweep, not for a caller."""
    query = select(batches).where(batches.c.remove_work_at <= now)
    query = query.order_by(batches.c.remove_work_at, batches.c.id).limit(limit)
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def forget_work(conn: Connection, batch: Batch) -> None:
    """Shards and Segments of the batch are gone from the Store."""
    delete_work(conn, batch.tenant_id, batch.id)
    statement = update(batches).where(
        batches.c.tenant_id == batch.tenant_id, batches.c.id == batch.id
    )
    conn.execute(statement.values(remove_work_at=None))


def delete_work(conn: Connection, tenant_id: str, batch_id: str) -> None:
    """The rows of its Shards and Segments."""
    for table in (shards, segments, size_classes):
        conn.execute(
            delete(table).where(table.c.tenant_id == tenant_id, table.c.batch_id == batch_id)
        )


def read_row(conn: Connection, tenant_id: str, batch_id: str) -> dict[str, Any] | None:
    """The row of a batch as it stands in the table, also of a deleted one."""
    query = select(batches).where(batches.c.tenant_id == tenant_id, batches.c.id == batch_id)
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def claim_chore(conn: Connection, name: str, *, now: int, every_s: int) -> bool:
    """Whether the chore is due and this caller is the one to do it."""
    statement = update(chores).where(chores.c.name == name, chores.c.due_at <= now)
    if conn.execute(statement.values(due_at=now + every_s)).rowcount:
        return True
    if conn.execute(select(chores.c.name).where(chores.c.name == name)).first() is not None:
        return False
    # Somebody else may be a moment faster.
    with suppress(IntegrityError), conn.begin_nested():
        conn.execute(insert(chores).values(name=name, due_at=now + every_s))
        return True
    return False


def is_chore_due(conn: Connection, name: str, *, now: int) -> bool:
    """Whether it is worth claiming."""
    due_at = conn.execute(select(chores.c.due_at).where(chores.c.name == name)).scalar()
    return due_at is None or due_at <= now
