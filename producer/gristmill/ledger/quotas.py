"""Queries about quotas: a tenant's own, what it has in use, the requests it took this minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select, update

from gristmill.ledger import tenants as tenant_queries
from gristmill.ledger.schema import batches, files, shards, tenants
from gristmill.ledger.shards import ShardState
from gristmill.ledger.status import OPEN


@dataclass(frozen=True, slots=True)
class Tenant:
    """`own` has the quotas that differ from the defaults, by name; None is no limit."""

    tenant_id: str
    created_at: int
    own: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Grant:
    """Requests that were taken from a minute for somebody to hand out.

    `minute` counts from 1970, `total` is what was taken from it by all so far.
    """

    minute: int
    num_granted: int
    total: int


def get(conn: Connection, tenant_id: str, *, for_update: bool = False) -> Tenant | None:
    """With `for_update` nobody else counts for this tenant until the transaction ends."""
    query = select(tenants).where(tenants.c.tenant_id == tenant_id)
    row = conn.execute(query.with_for_update() if for_update else query).mappings().one_or_none()
    return None if row is None else _tenant(row)


def find_own(conn: Connection, tenant_id: str, *, for_update: bool = False) -> dict[str, Any]:
    """The quotas that the tenant has of its own."""
    found = get(conn, tenant_id, for_update=for_update)
    return {} if found is None else dict(found.own)


def list_tenants(conn: Connection, *, limit: int, after_id: str = "") -> list[Tenant]:
    """By id, for an operator."""
    query = select(tenants).where(tenants.c.tenant_id > after_id).order_by(tenants.c.tenant_id)
    return [_tenant(row) for row in conn.execute(query.limit(limit)).mappings()]


def set_own(
    conn: Connection, tenant_id: str, changes: Mapping[str, int | None], *, defaults: set[str]
) -> Tenant | None:
    """Give a tenant quotas of its own, or back to the `defaults`. None when there is no such."""
    found = get(conn, tenant_id, for_update=True)
    if found is None:
        return None
    own = {name: limit for name, limit in found.own.items() if name not in defaults}
    own |= changes
    statement = update(tenants).where(tenants.c.tenant_id == tenant_id)
    conn.execute(statement.values(quotas=own or None))
    return Tenant(tenant_id, found.created_at, own)


def take_requests(conn: Connection, tenant_id: str, *, now: int, wanted: int, limit: int) -> Grant:
    """Take up to `wanted` requests from this minute, of which a tenant has `limit`.

    Processes whose clocks differ by less than a minute agree on which minute it is.
    """
    held = select(tenants.c.request_window, tenants.c.requests_granted)
    held = held.where(tenants.c.tenant_id == tenant_id).with_for_update()
    row = conn.execute(held).one_or_none()
    if row is None:
        tenant_queries.ensure(conn, tenant_id, now=now)
        row = conn.execute(held).one()
    minute, before = now // 60, 0
    if row.request_window is not None and minute <= row.request_window <= minute + 1:
        minute, before = row.request_window, row.requests_granted or 0
    num_granted = max(0, min(wanted, limit - before))
    if num_granted:
        statement = update(tenants).where(tenants.c.tenant_id == tenant_id)
        conn.execute(statement.values(request_window=minute, requests_granted=before + num_granted))
    return Grant(minute, num_granted, before + num_granted)


def count_batches(conn: Connection, tenant_id: str) -> int:
    """Those that are not at their end."""
    return _number(conn, select(func.count()).select_from(batches).where(*_open(tenant_id)))


def count_rows(conn: Connection, tenant_id: str) -> int:
    """Rows without a result, of batches that are not at their end, as far as they were read."""
    unanswered = batches.c.total - batches.c.completed - batches.c.failed
    running = (*_open(tenant_id), batches.c.freeze_reason.is_(None))
    return _number(conn, select(func.sum(unanswered)).where(*running))


def count_tokens(conn: Connection, tenant_id: str) -> int:
    """Prompt tokens of the Shards that are not done, of batches that are not at their end."""
    query = (
        select(func.sum(shards.c.num_prompt_tokens))
        .select_from(shards.join(batches, shards.c.batch_id == batches.c.id))
        .where(
            *_open(tenant_id),
            batches.c.freeze_reason.is_(None),
            shards.c.state != ShardState.DONE,
        )
    )
    return _number(conn, query)


def count_bytes(conn: Connection, tenant_id: str) -> int:
    """Of the files that are there, uploads and results."""
    of_tenant = (files.c.tenant_id == tenant_id, files.c.deleted_at.is_(None))
    return _number(conn, select(func.sum(files.c.num_bytes)).where(*of_tenant))


def _open(tenant_id: str) -> tuple[ColumnElement[bool], ...]:
    return batches.c.tenant_id == tenant_id, batches.c.status.in_(OPEN)


def _number(conn: Connection, query: Select[Any]) -> int:
    return int(conn.execute(query).scalar() or 0)


def _tenant(row: RowMapping) -> Tenant:
    return Tenant(row["tenant_id"], row["created_at"], dict(row["quotas"] or {}))
