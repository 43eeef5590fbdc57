"""/v1/batches/{id}/webhook: who created a batch without a URL, and now wants to be told its end."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import ConfigDict, StrictStr

from gristmill.api.batch_webhook import WebhookFields, webhook_of
from gristmill.api.batches import find_batch
from gristmill.api.bodies import documented, json_body
from gristmill.api.context import BatchesWriter, UseApi
from gristmill.api.failures import not_found, refused
from gristmill.api.webhook_objects import EndpointWithSecretObject, endpoint_with_secret
from gristmill.ledger import batches, webhooks
from gristmill.ledger.status import OPEN

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/batches", tags=["Batches"])


class BatchWebhookRequest(WebhookFields):
    model_config = ConfigDict(extra="forbid")

    webhook_url: StrictStr  # not optional here


@router.post("/{batch_id}/webhook", openapi_extra=documented(BatchWebhookRequest))
def tell_when_done(
    batch_id: str,
    api: UseApi,
    caller: BatchesWriter,  # known before the body is read
    body: Annotated[BatchWebhookRequest, Depends(json_body(BatchWebhookRequest))],
) -> EndpointWithSecretObject:
    """Tell this URL of the batch, which has not ended. A batch has one URL; see its endpoint's id.

    The same request again gives the same endpoint, with its secret.
    """
    find_batch(api, caller.tenant_id, batch_id)
    wanted = webhook_of(api, caller.tenant_id, body)
    assert wanted is not None, "the URL is required here"
    with api.ledger.write() as conn:
        # Held, so that it cannot end meanwhile and tell nobody.
        batch = batches.get(conn, caller.tenant_id, batch_id, for_update=True)
        if batch is None:
            raise not_found("batch", batch_id, param="batch_id")
        found = webhooks.of_batch(conn, caller.tenant_id, batch_id)
        if found is not None and found.url == wanted.url and found.deleted_at is None:
            return endpoint_with_secret(api.vault, found)
        if found is not None:
            raise refused(
                f"This batch has a webhook URL, that of the endpoint {found.id}. Update that one.",
                param="webhook_url",
                code="webhook_exists",
            )
        if batch.status not in OPEN:
            raise refused(
                f"The batch is {batch.status.value} already, so nothing will be told of it.",
                param="batch_id",
                code="batch_ended",
            )
        endpoint = replace(wanted, batch_id=batch_id, asked_url=None)
        webhooks.add(conn, endpoint)
    log.info(
        "batch webhook set tenant=%s batch=%s endpoint=%s", caller.tenant_id, batch_id, endpoint.id
    )
    return endpoint_with_secret(api.vault, endpoint)
