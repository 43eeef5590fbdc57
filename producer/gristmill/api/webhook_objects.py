"""What the API answers about webhooks: the official client's objects, with a few fields more."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from gristmill.control.webhook_vault import Vault
from gristmill.ledger import deliveries, webhook_events
from gristmill.ledger.deliveries import Attempt, Delivery, DeliveryState
from gristmill.ledger.webhook_events import WebhookEvent
from gristmill.ledger.webhooks import WebhookEndpoint


class EventTypeList(BaseModel):
    object: Literal["list"] = "list"
    data: list[str]


class EndpointObject(BaseModel):
    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str
    created_at: int
    updated_at: int
    #: Only for the events of this batch.
    batch_id: str | None
    enabled: bool
    disabled_reason: str | None
    #: In a row.
    num_failures: int
    last_success_at: int | None


class EndpointWithSecretObject(EndpointObject):
    #: Only here, and only now.
    signing_secret: str = Field(repr=False)


class EndpointDeletedObject(BaseModel):
    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: bool = True


class EndpointTestObject(BaseModel):
    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    event_type: str
    status_code: int
    success: Literal[True] = True
    webhook_endpoint_id: str


class AttemptObject(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    attempted_at: int
    duration_ms: int
    status_code: int | None
    #: Why there is no status: address_refused, name_not_found, connection_failed, timeout, …
    error: str | None
    response_body: str | None


class DeliveryObject(BaseModel):
    id: str
    object: Literal["webhook_delivery"] = "webhook_delivery"
    webhook_endpoint_id: str
    event_id: str
    event_type: str
    batch_id: str
    status: DeliveryState
    created_at: int
    next_attempt_at: int | None
    delivered_at: int | None
    attempts: list[AttemptObject]


class EventObject(BaseModel):
    """As it was sent."""

    id: str
    object: Literal["event"] = "event"
    type: str
    created_at: int
    data: dict[str, Any]


class EventWithDeliveriesObject(EventObject):
    deliveries: list[DeliveryObject]


def endpoint_object(vault: Vault, endpoint: WebhookEndpoint) -> EndpointObject:
    return EndpointObject(
        id=endpoint.id,
        name=endpoint.name,
        url=endpoint.url,
        event_types=list(endpoint.event_types),
        signing_secret_hint=vault.hint(endpoint.secret),
        created_at=endpoint.created_at,
        updated_at=endpoint.updated_at,
        batch_id=endpoint.batch_id,
        enabled=endpoint.disabled_at is None,
        disabled_reason=endpoint.disabled_reason,
        num_failures=endpoint.num_failures,
        last_success_at=endpoint.last_success_at,
    )


def endpoint_with_secret(vault: Vault, endpoint: WebhookEndpoint) -> EndpointWithSecretObject:
    shown = endpoint_object(vault, endpoint).model_dump()
    return EndpointWithSecretObject(**shown, signing_secret=vault.open(endpoint.secret))


def event_object(event: WebhookEvent) -> EventObject:
    return EventObject(**json.loads(event.body))


def delivery_objects(
    conn: Connection, tenant_id: str, found: list[Delivery]
) -> list[DeliveryObject]:
    """With all their attempts."""
    events = webhook_events.get_all(conn, tenant_id, {delivery.event_id for delivery in found})
    attempts = deliveries.attempts_of(conn, tenant_id, found)
    return [_delivery(one, events[one.event_id], attempts[one.id]) for one in found]


def _delivery(delivery: Delivery, event: WebhookEvent, attempts: list[Attempt]) -> DeliveryObject:
    is_pending = delivery.state is DeliveryState.PENDING
    return DeliveryObject(
        id=delivery.id,
        webhook_endpoint_id=delivery.endpoint_id,
        event_id=event.id,
        event_type=event.type,
        batch_id=event.batch_id,
        status=delivery.state,
        created_at=delivery.created_at,
        next_attempt_at=delivery.next_attempt_at if is_pending else None,
        delivered_at=delivery.delivered_at,
        attempts=list(map(AttemptObject.model_validate, attempts)),
    )
