"""All that the API has about webhooks, put together for `app.py`."""

from __future__ import annotations

from gristmill.api import (
    batch_done,
    webhook_deliveries,
    webhook_events,
    webhook_replay,
    webhooks,
)

ROUTERS = (
    *(webhooks.types_router, webhooks.router),
    *(webhook_deliveries.router, webhook_replay.router, webhook_events.router),
    batch_done.router,
)
#: Bodies that handlers read by themselves.
BODIES = (
    *(webhooks.EndpointRequest, webhooks.EndpointChange, webhooks.SecretRotation),
    *(webhook_deliveries.EndpointTest, batch_done.BatchWebhookRequest),
    webhook_replay.ReplayRequest,
)
