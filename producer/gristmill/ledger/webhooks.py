"""Queries about webhook endpoints: where a tenant is told, of what, and how well it listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, RowMapping, func, insert, or_, select, update

from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema_webhooks import webhook_endpoints


class EventType(StrEnum):
    """What can happen that somebody is told of, as OpenAI's clients name it."""

    COMPLETED = "batch.completed"
    FAILED = "batch.failed"
    EXPIRED = "batch.expired"
    CANCELLED = "batch.cancelled"
    #: A quarter, a half, three quarters of the rows are done. Ours; only for who asks for it.
    PROGRESS = "batch.progress"


#: How a batch ends: one of these happens to each batch, once.
ENDS = tuple(kind for kind in EventType if kind is not EventType.PROGRESS)


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """A row of the table. With a `batch_id` it hears of that batch only.

    Its secrets are as they lie there: sealed (control/webhook_vault.py).
    """

    id: str
    tenant_id: str
    name: str
    url: str
    event_types: tuple[str, ...]
    secret: str = field(repr=False)
    created_at: int
    updated_at: int
    batch_id: str | None = None
    old_secret: str | None = field(default=None, repr=False)
    old_secret_until: int | None = None
    secret_rotated_at: int | None = None
    disabled_at: int | None = None
    disabled_reason: str | None = None
    deleted_at: int | None = None
    num_failures: int = 0
    failing_since: int | None = None
    retry_at: int | None = None
    last_success_at: int | None = None
    #: What the request for its batch brought, whatever `url` is now.
    asked_url: str | None = None

    def live_secrets(self, now: float) -> tuple[str, ...]:
        """Those that sign, the newest first: two for a while after a rotation."""
        if self.old_secret is None or (self.old_secret_until or 0) <= now:
            return (self.secret,)
        return self.secret, self.old_secret


def add(conn: Connection, endpoint: WebhookEndpoint) -> None:
    values = asdict(endpoint) | {"event_types": list(endpoint.event_types)}
    conn.execute(insert(webhook_endpoints).values(**values))


def get(
    conn: Connection, tenant_id: str, endpoint_id: str, *, for_update: bool = False
) -> WebhookEndpoint | None:
    """None also for one that was deleted."""
    query = select(webhook_endpoints).where(
        webhook_endpoints.c.id == endpoint_id,
        webhook_endpoints.c.tenant_id == tenant_id,
        webhook_endpoints.c.deleted_at.is_(None),
    )
    row = conn.execute(query.with_for_update() if for_update else query).mappings().one_or_none()
    return None if row is None else _endpoint(row)


def of_batch(conn: Connection, tenant_id: str, batch_id: str) -> WebhookEndpoint | None:
    """The URL that came with a batch."""
    query = select(webhook_endpoints).where(
        webhook_endpoints.c.tenant_id == tenant_id, webhook_endpoints.c.batch_id == batch_id
    )
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else _endpoint(row)


def inherit(
    conn: Connection, tenant_id: str, batch_id: str, *, from_batch: str, new_id: str, now: int
) -> None:
    """What heard of the one batch hears of this one too."""
    found = of_batch(conn, tenant_id, from_batch)
    if found is not None and found.deleted_at is None:
        heard_nothing = replace(
            found, num_failures=0, failing_since=None, retry_at=None, last_success_at=None
        )
        add(
            conn,
            replace(heard_nothing, batch_id=batch_id, id=new_id, created_at=now, updated_at=now),
        )


def count(conn: Connection, tenant_id: str) -> int:
    """Of those that are not for one batch only."""
    query = select(func.count()).select_from(webhook_endpoints).where(*_listed(tenant_id))
    return conn.execute(query).scalar_one()


def list_page(
    conn: Connection, tenant_id: str, *, limit: int, after_id: str | None = None
) -> Page[WebhookEndpoint] | None:
    """The newest first; None when the tenant never had one with the id `after_id`."""
    return read_page(
        conn,
        webhook_endpoints,
        _endpoint,
        of=(webhook_endpoints.c.tenant_id == tenant_id,),
        shown=_listed(tenant_id),
        limit=limit,
        after_id=after_id,
    )


def list_listening(
    conn: Connection, tenant_id: str, batch_id: str, event_type: str
) -> list[WebhookEndpoint]:
    """Those that are told of such an event of this batch."""
    query = select(webhook_endpoints).where(
        webhook_endpoints.c.tenant_id == tenant_id,
        webhook_endpoints.c.deleted_at.is_(None),
        webhook_endpoints.c.disabled_at.is_(None),
        or_(webhook_endpoints.c.batch_id.is_(None), webhook_endpoints.c.batch_id == batch_id),
    )
    rows = conn.execute(query.order_by(webhook_endpoints.c.id)).mappings()
    return [found for found in map(_endpoint, rows) if event_type in found.event_types]


def change(conn: Connection, endpoint: WebhookEndpoint, values: Mapping[str, Any]) -> None:
    """Write these columns of an endpoint that is not deleted."""
    statement = update(webhook_endpoints).where(
        webhook_endpoints.c.id == endpoint.id,
        webhook_endpoints.c.tenant_id == endpoint.tenant_id,
        webhook_endpoints.c.deleted_at.is_(None),
    )
    conn.execute(statement.values(**values))


def delete(conn: Connection, endpoint: WebhookEndpoint, *, now: int) -> None:
    """Its secrets go; its deliveries are another query's (deliveries.remove_of_endpoint)."""
    gone = {"deleted_at": now, "secret": "", "old_secret": None, "old_secret_until": None}
    change(conn, endpoint, gone)


def _listed(tenant_id: str) -> tuple[Any, ...]:
    return (
        webhook_endpoints.c.tenant_id == tenant_id,
        webhook_endpoints.c.batch_id.is_(None),
        webhook_endpoints.c.deleted_at.is_(None),
    )


def _endpoint(row: RowMapping) -> WebhookEndpoint:
    return WebhookEndpoint(**dict(row) | {"event_types": tuple(row["event_types"])})
