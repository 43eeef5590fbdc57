"""/v1/webhook_endpoints: where a tenant is told what became of its batches.

Create, list, retrieve, update, delete and rotate_secret, as the official client calls them.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from gristmill.api.bodies import documented, json_body
from gristmill.api.context import UseApi, WebhooksReader, WebhooksWriter
from gristmill.api.failures import not_found, refused
from gristmill.api.lookup import list_page
from gristmill.api.objects import ListObject
from gristmill.api.resent import (
    IdempotencyKey,
    RetryCount,
    first_made,
    keep_made,
    key_reused,
    made_before,
    named,
    named_by_itself,
)
from gristmill.api.webhook_access import (
    EndpointToRead,
    EndpointToWrite,
    check_url,
    find_endpoint,
)
from gristmill.api.webhook_objects import (
    EndpointDeletedObject,
    EndpointObject,
    EndpointWithSecretObject,
    EventTypeList,
    endpoint_object,
    endpoint_with_secret,
)
from gristmill.control.webhook_signing import new_secret
from gristmill.ledger import deliveries, webhooks
from gristmill.ledger.ids import new_id
from gristmill.ledger.webhooks import EventType, WebhookEndpoint

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/webhook_endpoints", tags=["Webhooks"])
types_router = APIRouter(prefix="/v1/webhook_event_types", tags=["Webhooks"])

_MAX_ENDPOINTS = 50
#: How long the old secret signs as well, if that is wished.
_OVERLAP_S = 24 * 3600


class EndpointRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr = Field(min_length=1, max_length=200)
    url: StrictStr
    event_types: list[EventType] = Field(min_length=1, max_length=100)


class EndpointChange(BaseModel):
    """What is left out stays. A new URL, or `enabled`, ends what an endpoint was disabled for."""

    model_config = ConfigDict(extra="forbid")

    name: StrictStr | None = Field(None, min_length=1, max_length=200)
    url: StrictStr | None = None
    event_types: list[EventType] | None = Field(None, min_length=1, max_length=100)
    enabled: StrictBool | None = None


class SecretRotation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keep_old_secret_active_for_24_hours: StrictBool = False


@types_router.get("")
def list_event_types(caller: WebhooksReader) -> EventTypeList:
    """`batch.progress` comes when a quarter, a half and three quarters of the rows are done."""
    return EventTypeList(data=list(EventType))


@router.post("", openapi_extra=documented(EndpointRequest))
def create_endpoint(
    api: UseApi,
    caller: WebhooksWriter,  # known before the body is read
    body: Annotated[EndpointRequest, Depends(json_body(EndpointRequest))],
    idempotency_key: IdempotencyKey = None,
    retry_count: RetryCount = None,
) -> EndpointWithSecretObject:
    """The signing secret is in this answer and nowhere else.

    The same `Idempotency-Key`, from the same API key, gives the same endpoint for 24 hours.
    """
    check_url(api, body.url, param="url")
    asked = [caller.key_id, body.model_dump()]
    request = named("webhook_endpoints", idempotency_key, asked)
    wanted = tuple(dict.fromkeys(kind.value for kind in body.event_types))
    now = api.now
    endpoint = WebhookEndpoint(
        id=new_id("we_", api.clock()),
        tenant_id=caller.tenant_id,
        name=body.name,
        url=body.url,
        event_types=wanted,
        secret=api.vault.seal(new_secret()),
        created_at=now,
        updated_at=now,
    )
    with api.ledger.write() as conn:
        first_id = first_made(conn, caller.tenant_id, request, endpoint.id, now=now)
        if first_id != endpoint.id:
            first = webhooks.get(conn, caller.tenant_id, first_id)
            if first is None:
                raise key_reused(first_id, why="which is not there any more")
            if first.secret_rotated_at is not None:  # perhaps by another API key
                raise key_reused(first_id, why="whose secret was rotated since")
            return endpoint_with_secret(api.vault, first)
        if request is None:
            blind = named_by_itself("webhook_endpoints", asked)
            before_id = made_before(conn, caller.tenant_id, blind, retry_count, now=now)
            before = webhooks.get(conn, caller.tenant_id, before_id) if before_id else None
            if before is not None and before.secret_rotated_at is None:
                return endpoint_with_secret(api.vault, before)
            keep_made(conn, caller.tenant_id, blind, endpoint.id, now=now)
        if webhooks.count(conn, caller.tenant_id) >= _MAX_ENDPOINTS:
            raise refused(
                f"There are {_MAX_ENDPOINTS} webhook endpoints, and there can be no more. Delete "
                "one, or send `webhook_url` with each batch.",
                param=None,
                code="too_many_webhook_endpoints",
            )
        webhooks.add(conn, endpoint)
    log.info("webhook endpoint created tenant=%s endpoint=%s", caller.tenant_id, endpoint.id)
    return endpoint_with_secret(api.vault, endpoint)


@router.get("")
def list_endpoints(
    api: UseApi,
    caller: WebhooksReader,
    after: Annotated[str | None, Query(description="The id of the last one seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ListObject[EndpointObject]:
    """The newest first, without those that came with a batch."""
    return list_page(
        api,
        "webhook endpoint",
        after,
        lambda conn: webhooks.list_page(conn, caller.tenant_id, limit=limit, after_id=after),
        partial(endpoint_object, api.vault),
    )


@router.get("/{webhook_endpoint_id}")
def retrieve_endpoint(api: UseApi, endpoint: EndpointToRead) -> EndpointObject:
    return endpoint_object(api.vault, endpoint)


@router.post("/{webhook_endpoint_id}", openapi_extra=documented(EndpointChange))
def update_endpoint(
    api: UseApi,
    endpoint: EndpointToWrite,
    body: Annotated[EndpointChange, Depends(json_body(EndpointChange))],
) -> EndpointObject:
    wanted = replace(
        endpoint,
        name=endpoint.name if body.name is None else body.name,
        url=endpoint.url if body.url is None else body.url,
        event_types=endpoint.event_types
        if body.event_types is None
        else tuple(dict.fromkeys(kind.value for kind in body.event_types)),
    )
    if wanted.url != endpoint.url:
        check_url(api, wanted.url, param="url")
    is_enabled = endpoint.disabled_at is None or wanted.url != endpoint.url
    wants_enabled = is_enabled if body.enabled is None else body.enabled
    changed: dict[str, Any] = {
        "name": wanted.name,
        "url": wanted.url,
        "event_types": list(wanted.event_types),
    }
    is_changed = wanted != endpoint or wants_enabled != (endpoint.disabled_at is None)
    if is_changed:
        changed["updated_at"] = api.now
    if is_changed and wants_enabled and (endpoint.disabled_at or wanted.url != endpoint.url):
        # What is known of the receiver so far, no longer holds.
        changed |= dict.fromkeys(("disabled_at", "disabled_reason", "failing_since", "retry_at"))
        changed["num_failures"] = 0
    elif is_changed and not wants_enabled and endpoint.disabled_at is None:
        changed |= {"disabled_at": api.now, "disabled_reason": "Its owner has disabled it."}
    with api.ledger.write() as conn:
        webhooks.change(conn, endpoint, changed)
        if is_changed and not wants_enabled:
            deliveries.give_up(conn, endpoint)
        elif changed.get("num_failures") == 0:
            deliveries.release(conn, endpoint, now=api.now)
    return endpoint_object(api.vault, find_endpoint(api, endpoint.tenant_id, endpoint.id))


@router.delete("/{webhook_endpoint_id}")
def delete_endpoint(api: UseApi, endpoint: EndpointToWrite) -> EndpointDeletedObject:
    """Nothing is sent to it any more, and its log is gone."""
    with api.ledger.write() as conn:
        webhooks.delete(conn, endpoint, now=api.now)
        deliveries.remove_of_endpoint(conn, endpoint)
    log.info("webhook endpoint deleted tenant=%s endpoint=%s", endpoint.tenant_id, endpoint.id)
    return EndpointDeletedObject(id=endpoint.id)


@router.post("/{webhook_endpoint_id}/rotate_secret", openapi_extra=documented(SecretRotation))
def rotate_secret(
    api: UseApi,
    caller: WebhooksWriter,
    endpoint: EndpointToWrite,
    body: Annotated[SecretRotation, Depends(json_body(SecretRotation, may_be_empty=True))],
    idempotency_key: IdempotencyKey = None,
    retry_count: RetryCount = None,
) -> EndpointWithSecretObject:
    """A new secret, which is in this answer only. For 24 hours both sign, if that is wished.

    A request that is sent again, with its `Idempotency-Key` or by the official client itself,
    gets the secret of the first one, if the same API key sends it and nobody has rotated since.
    """
    now, secret = api.now, new_secret()
    made_id = _id_of_secret(secret)
    asked = [caller.key_id, endpoint.id, body.model_dump()]
    request = named("webhook_secrets", idempotency_key, asked)
    with api.ledger.write() as conn:
        current = webhooks.get(conn, endpoint.tenant_id, endpoint.id, for_update=True)
        if current is None:
            raise not_found("webhook endpoint", endpoint.id, param="webhook_endpoint_id")
        first_id = first_made(conn, endpoint.tenant_id, request, made_id, now=now)
        if first_id != made_id:
            if first_id != _id_of_secret(api.vault.open(current.secret)):
                raise key_reused(first_id, why="which another one has replaced since")
            return endpoint_with_secret(api.vault, current)
        if request is None:
            blind = named_by_itself("webhook_secrets", asked)
            before_id = made_before(conn, endpoint.tenant_id, blind, retry_count, now=now)
            if before_id and before_id == _id_of_secret(api.vault.open(current.secret)):
                return endpoint_with_secret(api.vault, current)
            keep_made(conn, endpoint.tenant_id, blind, made_id, now=now)
        is_kept = body.keep_old_secret_active_for_24_hours
        changed = {
            "secret": api.vault.seal(secret),
            "old_secret": current.secret if is_kept else None,
            "old_secret_until": now + _OVERLAP_S if is_kept else None,
            "secret_rotated_at": now,
            "updated_at": now,
        }
        webhooks.change(conn, current, changed)
    log.info("webhook secret rotated tenant=%s endpoint=%s", endpoint.tenant_id, endpoint.id)
    return endpoint_with_secret(api.vault, find_endpoint(api, endpoint.tenant_id, endpoint.id))


def _id_of_secret(secret: str) -> str:
    """Tells one from another, and nothing of it: it has far too many possible values to try."""
    return f"secret_{hashlib.sha256(secret.encode()).hexdigest()[:16]}"
