"""Events that webhooks tell of: recorded in the very transaction in which they happen.

The id of an event is made of what happened, so that a step that is repeated records nothing anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from gristmill.ledger import deliveries, webhooks
from gristmill.ledger.batch import Batch
from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema_webhooks import webhook_endpoints, webhook_events
from gristmill.ledger.status import BatchStatus
from gristmill.ledger.webhooks import ENDS, EventType

#: Of all rows; that the last quarter is done, the end says.
MILESTONES_PERCENT = (25, 50, 75)


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """`body` is the JSON text that is signed and sent, the same at each attempt."""

    id: str
    tenant_id: str
    batch_id: str
    type: str
    body: str
    created_at: int


def event_body(event_id: str, event_type: str, data: Mapping[str, Any], now: int) -> str:
    """ASCII, so that nobody on the way can write it in another way."""
    document = {
        "id": event_id,
        "object": "event",
        "type": event_type,
        "created_at": now,
        "data": dict(data),
    }
    return json.dumps(document, separators=(",", ":"))


def record_end(
    conn: Connection, tenant_id: str, batch_id: str, status: BatchStatus, *, now: int
) -> None:
    """The batch has just reached this end; who listens is told."""
    _record(conn, tenant_id, batch_id, EventType(f"batch.{status}"), {"id": batch_id}, now=now)


def record_progress(
    conn: Connection, batch: Batch, *, completed: int, failed: int, now: int
) -> None:
    """So many rows are done more than `batch` tells. Of several milestones only the last counts."""
    before = batch.completed + batch.failed
    done = before + completed + failed
    if batch.status is not BatchStatus.IN_PROGRESS or done >= batch.total:
        return
    passed = [m for m in MILESTONES_PERCENT if 100 * before < m * batch.total <= 100 * done]
    if not passed or not webhooks.list_listening(
        conn, batch.tenant_id, batch.id, EventType.PROGRESS
    ):
        return
    counts = {
        "total": batch.total,
        "completed": batch.completed + completed,
        "failed": batch.failed + failed,
    }
    data = {"id": batch.id, "percent": passed[-1], "request_counts": counts}
    _record(conn, batch.tenant_id, batch.id, EventType.PROGRESS, data, now=now)


def get(conn: Connection, tenant_id: str, event_id: str) -> WebhookEvent | None:
    query = select(webhook_events).where(
        webhook_events.c.id == event_id, webhook_events.c.tenant_id == tenant_id
    )
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else WebhookEvent(**dict(row))


def get_all(conn: Connection, tenant_id: str, ids: Iterable[str]) -> dict[str, WebhookEvent]:
    """Those of the tenant's events, by id."""
    query = select(webhook_events).where(
        webhook_events.c.tenant_id == tenant_id, webhook_events.c.id.in_(list(ids))
    )
    return {row["id"]: WebhookEvent(**dict(row)) for row in conn.execute(query).mappings()}


def list_page(
    conn: Connection,
    tenant_id: str,
    *,
    limit: int,
    after_id: str | None = None,
    batch_id: str | None = None,
) -> Page[WebhookEvent] | None:
    """The newest first, of all batches or of one; None when there is no event `after_id`."""
    return read_page(
        conn,
        webhook_events,
        lambda row: WebhookEvent(**row),
        of=(webhook_events.c.tenant_id == tenant_id,),
        shown=() if batch_id is None else (webhook_events.c.batch_id == batch_id,),
        limit=limit,
        after_id=after_id,
    )


def list_old(conn: Connection, *, before: int, limit: int = 100) -> list[WebhookEvent]:
    """Events of all tenants that are kept no longer, for the control side."""
    query = select(webhook_events).where(webhook_events.c.created_at < before)
    rows = conn.execute(query.order_by(webhook_events.c.created_at).limit(limit)).mappings()
    return [WebhookEvent(**dict(row)) for row in rows]


def remove(conn: Connection, event: WebhookEvent) -> None:
    """With its deliveries, and after the end of a batch with the URL that was for it alone."""
    deliveries.remove_of_event(conn, event.tenant_id, event.id)
    conn.execute(
        delete(webhook_events).where(
            webhook_events.c.id == event.id, webhook_events.c.tenant_id == event.tenant_id
        )
    )
    if event.type in set(ENDS):
        conn.execute(
            delete(webhook_endpoints).where(
                webhook_endpoints.c.tenant_id == event.tenant_id,
                webhook_endpoints.c.batch_id == event.batch_id,
            )
        )


def _record(
    conn: Connection,
    tenant_id: str,
    batch_id: str,
    event_type: EventType,
    data: Mapping[str, Any],
    *,
    now: int,
) -> None:
    what = "\0".join((tenant_id, batch_id, event_type, str(data.get("percent", ""))))
    event_id = "evt_" + hashlib.sha256(what.encode()).hexdigest()[:32]
    if get(conn, tenant_id, event_id) is not None:
        return
    body = event_body(event_id, event_type, data, now)
    event = WebhookEvent(event_id, tenant_id, batch_id, event_type, body, now)
    conn.execute(insert(webhook_events).values(**asdict(event)))
    for endpoint in webhooks.list_listening(conn, tenant_id, batch_id, event_type):
        deliveries.add(conn, event_id, endpoint, now=now)
