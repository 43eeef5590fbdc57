"""/v1/webhook_events/replay: what happened in a span of time is told again."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from gristmill.api.bodies import documented, json_body
from gristmill.api.context import UseApi, WebhooksWriter, is_id
from gristmill.api.failures import not_found, refused
from gristmill.api.webhook_access import find_endpoint
from gristmill.ledger import webhook_replays
from gristmill.ledger.webhooks import EventType

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/webhook_events", tags=["Webhooks"])

#: Events of one call, which is one transaction.
_MAX_EVENTS = 200
_MAX_TIME = 253402300799


class ReplayRequest(BaseModel):
    """`since` to just before `until` (default: now), in Unix seconds."""

    model_config = ConfigDict(extra="forbid")

    since: StrictInt = Field(ge=0, le=_MAX_TIME)
    until: StrictInt | None = Field(None, ge=0, le=_MAX_TIME)
    #: Default: all that happened.
    event_types: list[EventType] | None = Field(None, min_length=1, max_length=100)
    #: Default: all that listen.
    webhook_endpoint_id: StrictStr | None = None
    #: Not what has arrived there once.
    undelivered_only: StrictBool = False
    #: Those behind this event: the `last_id` of the call before.
    after: StrictStr | None = None


class ReplayObject(BaseModel):
    """Where `has_more`, the next call goes on `after` the `last_id`."""

    object: Literal["webhook_replay"] = "webhook_replay"
    since: int
    until: int
    num_events: int
    num_deliveries: int
    last_id: str | None
    has_more: bool


@router.post("/replay", openapi_extra=documented(ReplayRequest))
def replay_events(
    api: UseApi,
    caller: WebhooksWriter,  # known before the body is read
    body: Annotated[ReplayRequest, Depends(json_body(ReplayRequest))],
) -> ReplayObject:
    """Send the events of a span of time again, each under its id, the oldest first."""
    until = api.now + 1 if body.until is None else body.until
    if until <= body.since:
        raise refused(f"until is {until}, which is not after since.", param="until")
    if body.webhook_endpoint_id is not None:
        endpoint = find_endpoint(api, caller.tenant_id, body.webhook_endpoint_id)
        if endpoint.disabled_at is not None:
            raise refused(
                f"{endpoint.id} is disabled, so nothing is sent there. Enable it first.",
                param="webhook_endpoint_id",
                code="nobody_listens",
            )
    page, num_deliveries = None, 0
    if body.after is None or is_id(body.after):
        with api.ledger.write() as conn:
            page = webhook_replays.list_between(
                conn,
                caller.tenant_id,
                since=body.since,
                until=until,
                types=[kind.value for kind in body.event_types or ()],
                after_id=body.after,
                limit=_MAX_EVENTS,
            )
            if page is not None:
                num_deliveries = webhook_replays.replay(
                    conn,
                    page.items,
                    endpoint_id=body.webhook_endpoint_id,
                    undelivered_only=body.undelivered_only,
                    now=api.now,
                )
    if page is None:
        raise not_found("event", body.after or "", param="after")
    log.info(
        "webhook events replayed tenant=%s since=%d until=%d events=%d deliveries=%d",
        *(caller.tenant_id, body.since, until, len(page.items), num_deliveries),
    )
    return ReplayObject(
        since=body.since,
        until=until,
        num_events=len(page.items),
        num_deliveries=num_deliveries,
        last_id=page.items[-1].id if page.items else body.after,
        has_more=page.has_more,
    )
