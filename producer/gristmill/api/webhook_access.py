"""How handlers come to the webhook endpoint that a URL names, and which URLs it may have."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from gristmill.api.context import Api, UseApi, WebhooksReader, WebhooksWriter
from gristmill.api.failures import refused
from gristmill.api.lookup import find
from gristmill.control.webhook_addresses import AddressPolicy, UrlRefused
from gristmill.ledger import webhooks
from gristmill.ledger.webhooks import WebhookEndpoint


def find_endpoint(api: Api, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    """Raises ApiError (404) unless the tenant has this endpoint."""
    return find(
        api,
        "webhook endpoint",
        endpoint_id,
        lambda conn: webhooks.get(conn, tenant_id, endpoint_id),
        param="webhook_endpoint_id",
    )


def check_url(api: Api, url: str, *, param: str) -> None:
    """Raises ApiError for a URL that nothing is ever sent to."""
    try:
        AddressPolicy.of(api.settings).check_url(url)
    except UrlRefused as error:
        raise refused(
            f"{param}: {error} (got {url[:80]!a}).", param=param, code="webhook_url_refused"
        ) from error


def _to_read(webhook_endpoint_id: str, api: UseApi, caller: WebhooksReader) -> WebhookEndpoint:
    return find_endpoint(api, caller.tenant_id, webhook_endpoint_id)


def _to_write(webhook_endpoint_id: str, api: UseApi, caller: WebhooksWriter) -> WebhookEndpoint:
    return find_endpoint(api, caller.tenant_id, webhook_endpoint_id)


#: Both are known before the body of a request is read.
EndpointToRead = Annotated[WebhookEndpoint, Depends(_to_read)]
EndpointToWrite = Annotated[WebhookEndpoint, Depends(_to_write)]
