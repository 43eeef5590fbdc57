"""/v1/webhook_endpoints/{id}: a test of it, and the log of what was sent there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict

from gristmill.api.bodies import documented, json_body
from gristmill.api.context import UseApi, is_id
from gristmill.api.failures import not_found, refused, too_many
from gristmill.api.objects import ListObject, list_object
from gristmill.api.webhook_access import EndpointToRead, EndpointToWrite
from gristmill.api.webhook_objects import DeliveryObject, EndpointTestObject, delivery_objects
from gristmill.control.webhook_addresses import AddressPolicy
from gristmill.control.webhook_sender import ATTEMPT_S, WebhookSender
from gristmill.control.webhook_signing import signed_headers
from gristmill.ledger import deliveries
from gristmill.ledger.ids import new_id
from gristmill.ledger.webhook_events import event_body
from gristmill.ledger.webhooks import EventType

router = APIRouter(prefix="/v1/webhook_endpoints", tags=["Webhooks"])


class EndpointTest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    event_type: EventType


@router.post("/{webhook_endpoint_id}/test", openapi_extra=documented(EndpointTest))
def send_test_event(
    api: UseApi,
    endpoint: EndpointToWrite,
    body: Annotated[EndpointTest, Depends(json_body(EndpointTest))],
) -> EndpointTestObject:
    """Send a sample event now, once, and say what the receiver answered, within 15 seconds."""
    if not api.webhook_tests.acquire(blocking=False):
        raise too_many(
            "Others test their endpoints just now. Try again in a moment.",
            kind="requests",
            wait_s=ATTEMPT_S,
        )
    try:
        event_id, now = new_id("evt_test_", api.clock()), api.now
        text = event_body(event_id, body.event_type, {"id": "batch_test"}, now)
        secrets = map(api.vault.open, endpoint.live_secrets(now))
        headers = signed_headers(event_id, text, secrets, now=now)
        sender = WebhookSender(AddressPolicy.of(api.settings))
        answer = sender.send(endpoint.url, headers, text.encode())
    finally:
        api.webhook_tests.release()
    if answer.status_code is None:
        raise refused(
            f"The endpoint did not answer: {answer.error}. Look after its URL and its server.",
            param="webhook_endpoint_id",
            code="webhook_test_failed",
        )
    return EndpointTestObject(
        event_type=body.event_type,
        status_code=answer.status_code,
        webhook_endpoint_id=endpoint.id,
    )


@router.get("/{webhook_endpoint_id}/deliveries")
def list_deliveries(
    api: UseApi,
    endpoint: EndpointToRead,
    after: Annotated[str | None, Query(description="The id of the last one seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ListObject[DeliveryObject]:
    """The newest first, each with its attempts. They are kept for 30 days."""
    objects, page = [], None
    with api.ledger.read() as conn:
        if after is None or is_id(after):
            page = deliveries.list_page(
                conn, endpoint.tenant_id, endpoint.id, limit=limit, after_id=after
            )
        if page is not None:
            objects = delivery_objects(conn, endpoint.tenant_id, page.items)
    if page is None:
        raise not_found("delivery", after or "", param="after")
    return list_object(objects, [shown.id for shown in objects], has_more=page.has_more)
