"""Queries about batches as callers of the API see them: lists, and requests that were re-sent."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, select

from gristmill.ledger.batch import Batch, batch_from_row
from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema import batches
from gristmill.ledger.status import BatchStatus


def find_by_idempotency_key(conn: Connection, tenant_id: str, key: str) -> Batch | None:
    """The batch that was created with this `Idempotency-Key`."""
    return _newest(conn, tenant_id, batches.c.idempotency_key == key)


def find_recent(conn: Connection, tenant_id: str, digest: str, *, since: int) -> Batch | None:
    """The newest batch that the same request has created since then."""
    return _newest(
        conn, tenant_id, batches.c.request_digest == digest, batches.c.created_at >= since
    )


def list_page(
    conn: Connection,
    tenant_id: str,
    *,
    limit: int,
    after_id: str | None = None,
    statuses: Collection[BatchStatus] | None = None,
) -> Page[Batch] | None:
    """The batches of a tenant, the newest first, in any of `statuses` (None: in all).

    None when it has none with the id `after_id`.
    """
    shown = [batches.c.deleted_at.is_(None)]
    if statuses is not None:
        shown.append(batches.c.status.in_(statuses))
    return read_page(
        conn,
        batches,
        batch_from_row,
        of=(batches.c.tenant_id == tenant_id,),
        shown=shown,
        limit=limit,
        after_id=after_id,
    )


def list_to_read(conn: Connection, *, limit: int = 100) -> list[Batch]:
    """Batches of all tenants whose input file is to be read, the oldest first: for ingest."""
    query = (
        select(batches)
        .where(
            batches.c.status == BatchStatus.VALIDATING,
            batches.c.freeze_reason.is_(None),
            batches.c.input_file_id.is_not(None),
        )
        .order_by(batches.c.created_at, batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def _newest(conn: Connection, tenant_id: str, *conditions: ColumnElement[bool]) -> Batch | None:
    query = select(batches).where(batches.c.tenant_id == tenant_id, *conditions)
    query = query.order_by(batches.c.created_at.desc(), batches.c.id.desc()).limit(1)
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else batch_from_row(row)
