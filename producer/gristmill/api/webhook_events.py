"""/v1/webhook_events: what webhooks told or should have told, and how to have it told again."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gristmill.api.context import Api, UseApi, WebhooksReader, WebhooksWriter, is_id
from gristmill.api.failures import not_found, refused
from gristmill.api.lookup import find, list_page
from gristmill.api.objects import ListObject
from gristmill.api.webhook_objects import (
    EventObject,
    EventWithDeliveriesObject,
    delivery_objects,
    event_object,
)
from gristmill.ledger import deliveries, webhook_events, webhooks
from gristmill.ledger.webhook_events import WebhookEvent

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/webhook_events", tags=["Webhooks"])


def _to_read(event_id: str, api: UseApi, caller: WebhooksReader) -> WebhookEvent:
    return find_event(api, caller.tenant_id, event_id)


def _to_write(event_id: str, api: UseApi, caller: WebhooksWriter) -> WebhookEvent:
    return find_event(api, caller.tenant_id, event_id)


EventToRead = Annotated[WebhookEvent, Depends(_to_read)]
EventToWrite = Annotated[WebhookEvent, Depends(_to_write)]


@router.get("")
def list_events(
    api: UseApi,
    caller: WebhooksReader,
    batch_id: Annotated[str | None, Query(description="Only of this batch.")] = None,
    after: Annotated[str | None, Query(description="The id of the last one seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ListObject[EventObject]:
    """The newest first. They are kept for 30 days, also when nobody was told."""
    if batch_id is not None and not is_id(batch_id):
        raise not_found("batch", batch_id, param="batch_id")
    return list_page(
        api,
        "event",
        after,
        lambda conn: webhook_events.list_page(
            conn, caller.tenant_id, limit=limit, after_id=after, batch_id=batch_id
        ),
        event_object,
    )


@router.get("/{event_id}")
def retrieve_event(api: UseApi, event: EventToRead) -> EventWithDeliveriesObject:
    return _with_deliveries(api, event)


@router.post("/{event_id}/replay")
def replay_event(api: UseApi, event: EventToWrite) -> EventWithDeliveriesObject:
    """Send it again, under the same id, to every enabled endpoint that listens to such events."""
    with api.ledger.write() as conn:
        listening = webhooks.list_listening(conn, event.tenant_id, event.batch_id, event.type)
        deliveries.replay(conn, event.id, listening, now=api.now)
    if not listening:
        raise refused(
            f"No enabled webhook endpoint listens to {event.type}. Create or enable one.",
            param="event_id",
            code="nobody_listens",
        )
    log.info("webhook event replayed tenant=%s event=%s", event.tenant_id, event.id)
    return _with_deliveries(api, event)


def _with_deliveries(api: Api, event: WebhookEvent) -> EventWithDeliveriesObject:
    with api.ledger.read() as conn:
        found = deliveries.of_event(conn, event.tenant_id, event.id)
        shown = delivery_objects(conn, event.tenant_id, found)
    return EventWithDeliveriesObject(**event_object(event).model_dump(), deliveries=shown)


def find_event(api: Api, tenant_id: str, event_id: str) -> WebhookEvent:
    """Raises ApiError (404) unless the tenant has this event."""
    return find(
        api,
        "event",
        event_id,
        lambda conn: webhook_events.get(conn, tenant_id, event_id),
        param="event_id",
    )
