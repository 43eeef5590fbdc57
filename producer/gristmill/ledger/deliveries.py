"""Queries about deliveries: which event goes to which endpoint, when next, and what came of it.

A delivery is claimed for a while by whoever sends it. If he dies of it, another one may then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema_webhooks import webhook_attempts, webhook_deliveries
from gristmill.ledger.webhooks import WebhookEndpoint


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    #: Nobody tries any more, unless it is replayed.
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A row of the table. `num_failures` are those since `started_at`, the schedule's begin."""

    id: str
    tenant_id: str
    event_id: str
    endpoint_id: str
    state: DeliveryState
    created_at: int
    started_at: int
    next_attempt_at: int
    num_failures: int = 0
    num_attempts: int = 0
    claimed_until: int = 0
    delivered_at: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, for the log: what the receiver answered, or why it did not."""

    n: int
    attempted_at: int
    duration_ms: int
    status_code: int | None
    error: str | None
    response_body: str | None


def add(conn: Connection, event_id: str, endpoint: WebhookEndpoint, *, now: int) -> None:
    """Due at once, or as soon as the endpoint's circuit is closed."""
    conn.execute(
        insert(webhook_deliveries).values(
            id=_delivery_id(event_id, endpoint.id),
            tenant_id=endpoint.tenant_id,
            event_id=event_id,
            endpoint_id=endpoint.id,
            state=DeliveryState.PENDING,
            created_at=now,
            started_at=now,
            next_attempt_at=max(now, endpoint.retry_at or 0),
        )
    )


def next_due(
    conn: Connection,
    *,
    now: int,
    busy_endpoints: Iterable[str] = (),
    busy_tenants: Iterable[str] = (),
) -> Delivery | None:
    """Of all tenants, what has waited longest: for the control side, never for a caller."""
    query = (
        select(webhook_deliveries)
        .where(
            webhook_deliveries.c.state == DeliveryState.PENDING,
            webhook_deliveries.c.next_attempt_at <= now,
            webhook_deliveries.c.claimed_until <= now,
            webhook_deliveries.c.endpoint_id.not_in(list(busy_endpoints)),
            webhook_deliveries.c.tenant_id.not_in(list(busy_tenants)),
        )
        .order_by(webhook_deliveries.c.next_attempt_at, webhook_deliveries.c.id)
        .limit(1)
    )
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else _delivery(row)


def claim(conn: Connection, delivery: Delivery, *, now: int, until: int) -> bool:
    """Its next attempt is ours. False when somebody else was faster, or it needs none."""
    return _change(
        conn,
        delivery,
        webhook_deliveries.c.num_attempts == delivery.num_attempts,
        webhook_deliveries.c.next_attempt_at <= now,
        webhook_deliveries.c.claimed_until <= now,
        num_attempts=delivery.num_attempts + 1,
        claimed_until=until,
    )


def forget_claims(conn: Connection) -> None:
    """Of all tenants: whoever was sending is dead, as the only process that could."""
    conn.execute(
        update(webhook_deliveries)
        .where(
            webhook_deliveries.c.state == DeliveryState.PENDING,
            webhook_deliveries.c.claimed_until > 0,
        )
        .values(claimed_until=0)
    )


def log_attempt(conn: Connection, delivery: Delivery, attempt: Attempt) -> None:
    values = asdict(attempt) | {"delivery_id": delivery.id, "tenant_id": delivery.tenant_id}
    conn.execute(insert(webhook_attempts).values(**values))


def mark_delivered(conn: Connection, delivery: Delivery, *, now: int) -> None:
    """Whoever else tries just now: it has arrived."""
    _change(
        conn,
        delivery,
        state=DeliveryState.DELIVERED,
        delivered_at=now,
        num_failures=0,
        claimed_until=0,
    )


def put_off(conn: Connection, delivery: Delivery, *, num_attempts: int, until: int | None) -> None:
    """Attempt `num_attempts` has failed, and is the newest; None says that it was the last."""
    values: dict[str, Any] = {"num_failures": delivery.num_failures + 1, "claimed_until": 0}
    if until is None:
        values["state"] = DeliveryState.FAILED
    else:
        values["next_attempt_at"] = until
    _change(conn, delivery, webhook_deliveries.c.num_attempts == num_attempts, **values)


def put_aside(conn: Connection, delivery: Delivery, *, until: int) -> None:
    """Nothing was sent, for a reason that is not the receiver's."""
    _change(conn, delivery, next_attempt_at=until, claimed_until=0)


def give_up(conn: Connection, endpoint: WebhookEndpoint) -> None:
    """Nothing that waits for this endpoint is tried any more."""
    _change_waiting(conn, endpoint, state=DeliveryState.FAILED)


def hold_back(conn: Connection, endpoint: WebhookEndpoint, *, until: int) -> None:
    """Nothing is sent to this endpoint before."""
    _change_waiting(
        conn, endpoint, webhook_deliveries.c.next_attempt_at < until, next_attempt_at=until
    )


def release(conn: Connection, endpoint: WebhookEndpoint, *, now: int) -> None:
    """The endpoint listens again: all that waits for it is due."""
    _change_waiting(conn, endpoint, webhook_deliveries.c.next_attempt_at > now, next_attempt_at=now)


def replay(
    conn: Connection, event_id: str, endpoints: Iterable[WebhookEndpoint], *, now: int
) -> None:
    """Send an event again, under its id, whatever became of it, to those endpoints."""
    for endpoint in endpoints:
        statement = update(webhook_deliveries).where(
            webhook_deliveries.c.id == _delivery_id(event_id, endpoint.id),
            webhook_deliveries.c.tenant_id == endpoint.tenant_id,
        )
        changed = conn.execute(
            statement.values(
                state=DeliveryState.PENDING,
                started_at=now,
                next_attempt_at=now,
                num_failures=0,
                delivered_at=None,
            )
        )
        if not changed.rowcount:
            add(conn, event_id, endpoint, now=now)


def list_page(
    conn: Connection, tenant_id: str, endpoint_id: str, *, limit: int, after_id: str | None = None
) -> Page[Delivery] | None:
    """The newest first; None when the endpoint has no delivery `after_id`."""
    of = (
        webhook_deliveries.c.tenant_id == tenant_id,
        webhook_deliveries.c.endpoint_id == endpoint_id,
    )
    return read_page(conn, webhook_deliveries, _delivery, of=of, limit=limit, after_id=after_id)


def of_event(conn: Connection, tenant_id: str, event_id: str) -> list[Delivery]:
    query = select(webhook_deliveries).where(
        webhook_deliveries.c.tenant_id == tenant_id, webhook_deliveries.c.event_id == event_id
    )
    rows = conn.execute(query.order_by(webhook_deliveries.c.endpoint_id)).mappings()
    return [_delivery(row) for row in rows]


def attempts_of(
    conn: Connection, tenant_id: str, of: Iterable[Delivery]
) -> dict[str, list[Attempt]]:
    """By the id of the delivery, in their order."""
    ids = [delivery.id for delivery in of]
    query = select(webhook_attempts).where(
        webhook_attempts.c.tenant_id == tenant_id, webhook_attempts.c.delivery_id.in_(ids)
    )
    found: dict[str, list[Attempt]] = {one: [] for one in ids}
    for row in conn.execute(query.order_by(webhook_attempts.c.n)).mappings():
        fields = {k: v for k, v in row.items() if k not in ("delivery_id", "tenant_id")}
        found[row["delivery_id"]].append(Attempt(**fields))
    return found


def remove_of_endpoint(conn: Connection, endpoint: WebhookEndpoint) -> None:
    _remove(conn, endpoint.tenant_id, webhook_deliveries.c.endpoint_id == endpoint.id)


def remove_of_event(conn: Connection, tenant_id: str, event_id: str) -> None:
    _remove(conn, tenant_id, webhook_deliveries.c.event_id == event_id)


def _remove(conn: Connection, tenant_id: str, which: ColumnElement[bool]) -> None:
    of_tenant = webhook_deliveries.c.tenant_id == tenant_id
    ids = select(webhook_deliveries.c.id).where(of_tenant, which)
    conn.execute(
        delete(webhook_attempts).where(
            webhook_attempts.c.tenant_id == tenant_id, webhook_attempts.c.delivery_id.in_(ids)
        )
    )
    conn.execute(delete(webhook_deliveries).where(of_tenant, which))


def _change(
    conn: Connection, delivery: Delivery, *conditions: ColumnElement[bool], **values: Any
) -> bool:
    statement = update(webhook_deliveries).where(
        webhook_deliveries.c.id == delivery.id,
        webhook_deliveries.c.tenant_id == delivery.tenant_id,
        webhook_deliveries.c.state == DeliveryState.PENDING,
        *conditions,
    )
    return conn.execute(statement.values(**values)).rowcount == 1


def _change_waiting(
    conn: Connection, endpoint: WebhookEndpoint, *conditions: ColumnElement[bool], **values: Any
) -> None:
    statement = update(webhook_deliveries).where(
        webhook_deliveries.c.endpoint_id == endpoint.id,
        webhook_deliveries.c.tenant_id == endpoint.tenant_id,
        webhook_deliveries.c.state == DeliveryState.PENDING,
        *conditions,
    )
    conn.execute(statement.values(**values))


def _delivery(row: Any) -> Delivery:
    return Delivery(**dict(row) | {"state": DeliveryState(row["state"])})


def _delivery_id(event_id: str, endpoint_id: str) -> str:
    digest = hashlib.sha256(f"{event_id}\0{endpoint_id}".encode())
    return f"whd_{digest.hexdigest()[:32]}"
