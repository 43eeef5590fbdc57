"""The URL that may come with a batch: `extra_body={"webhook_url": ...}` in the official client."""

from __future__ import annotations

from pydantic import BaseModel, Field, StrictStr, field_validator

from gristmill.api.context import Api
from gristmill.api.failures import refused
from gristmill.api.objects import BatchObject
from gristmill.api.webhook_access import check_url
from gristmill.control.webhook_signing import check_secret, new_secret
from gristmill.ledger import webhooks
from gristmill.ledger.batch import Batch
from gristmill.ledger.ids import new_id
from gristmill.ledger.webhooks import ENDS, EventType, WebhookEndpoint


class WebhookFields(BaseModel):
    """Of a request that makes a batch. Without a secret one is made, which the answer tells."""

    webhook_url: StrictStr | None = None
    webhook_secret: StrictStr | None = None
    webhook_event_types: list[EventType] = Field([*ENDS], min_length=1)

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret(cls, value: str | None) -> str | None:
        return None if value is None else check_secret(value)


class BatchWithWebhookObject(BatchObject):
    webhook_url: str
    #: Only here, and only when the request brought none.
    webhook_secret: str | None = Field(repr=False)


def webhook_of(api: Api, tenant_id: str, fields: WebhookFields) -> WebhookEndpoint | None:
    """What the batch is to have, yet without the batch. Raises ApiError."""
    if fields.webhook_url is None:
        for name in ("webhook_secret", "webhook_event_types"):
            if name in fields.model_fields_set:
                raise refused(f"{name} is for a webhook_url, and there is none.", param=name)
        return None
    check_url(api, fields.webhook_url, param="webhook_url")
    return WebhookEndpoint(
        id=new_id("we_", api.clock()),
        tenant_id=tenant_id,
        name="",
        url=fields.webhook_url,
        asked_url=fields.webhook_url,
        event_types=tuple(dict.fromkeys(kind.value for kind in fields.webhook_event_types)),
        secret=api.vault.seal(fields.webhook_secret or new_secret()),
        created_at=api.now,
        updated_at=api.now,
    )


def is_same_webhook(api: Api, batch: Batch, fields: WebhookFields) -> bool:
    """Whether the batch, which was made before, was asked for with this URL."""
    found = _found(api, batch)
    return (found.asked_url if found else None) == fields.webhook_url


def with_webhook(
    api: Api, batch: Batch, fields: WebhookFields, shown: BatchObject
) -> BatchObject | BatchWithWebhookObject:
    """With a URL also the secret of its deliveries, when the request is sent again too."""
    endpoint = None if fields.webhook_url is None else _found(api, batch)
    if endpoint is None:
        return shown
    return BatchWithWebhookObject(
        **shown.model_dump(),
        webhook_url=endpoint.url,
        webhook_secret=None if fields.webhook_secret else api.vault.open(endpoint.secret),
    )


def _found(api: Api, batch: Batch) -> WebhookEndpoint | None:
    with api.ledger.read() as conn:
        return webhooks.of_batch(conn, batch.tenant_id, batch.id)
