"""`client.webhooks`: where the service tells what became of batches, and what it has told.

The names are those of the openai package; `deliveries` and `events` are more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.files import checked_id
from gristmill.client.more_objects import (
    DeletedWebhookEndpoint,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
    WebhookTest,
)
from gristmill.client.objects import Object, PageContent
from gristmill.client.options import CallOptions
from gristmill.client.pages import AsyncPaginator, SyncPage
from gristmill.client.steps import Steps
from gristmill.client.verify import TOLERANCE_S, secret_of, verify_webhook
from gristmill.client.webhook_events import (
    AsyncEventTypes,
    AsyncWebhookEvents,
    EventCalls,
    EventTypeCalls,
    EventTypes,
    WebhookEvents,
)


@dataclass(frozen=True, slots=True)
class WebhookCalls:
    """The calls as Steps."""

    caller: Caller

    def post(
        self,
        kind: type[Object],
        path: str,
        body: Mapping[str, object],
        call: CallOptions,
    ) -> Steps[Object]:
        given = {name: value for name, value in body.items() if value is not None}
        request = self.caller.request("POST", f"/webhook_endpoints{path}", body=given, call=call)
        return self.caller.one(kind, request)

    def retrieve(self, endpoint_id: str, call: CallOptions) -> Steps[WebhookEndpoint]:
        path = f"/webhook_endpoints/{checked_id(endpoint_id)}"
        return self.caller.one(WebhookEndpoint, self.caller.request("GET", path, call=call))

    def delete(self, endpoint_id: str, call: CallOptions) -> Steps[DeletedWebhookEndpoint]:
        path = f"/webhook_endpoints/{checked_id(endpoint_id)}"
        request = self.caller.request("DELETE", path, call=call)
        return self.caller.one(DeletedWebhookEndpoint, request)

    def page(
        self, kind: type[Object], path: str, query: Mapping[str, object], call: CallOptions
    ) -> Steps[PageContent[Object]]:
        path = f"/webhook_endpoints{path}"
        return self.caller.page(kind, self.caller.request("GET", path, query=query, call=call))


class Webhooks:
    def __init__(self, calls: WebhookCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver
        self.events = WebhookEvents(EventCalls(calls.caller), driver)
        self.event_types = EventTypes(EventTypeCalls(calls.caller), driver)

    def create(
        self,
        *,
        name: str,
        url: str,
        event_types: Sequence[str],
        **options: Unpack[CallOptions],
    ) -> WebhookEndpoint:
        """Its `signing_secret` is in this answer and nowhere else."""
        body = {"name": name, "url": url, "event_types": list(event_types)}
        return self._driver.run(self._calls.post(WebhookEndpoint, "", body, options))

    def retrieve(self, webhook_endpoint_id: str, **options: Unpack[CallOptions]) -> WebhookEndpoint:
        return self._driver.run(self._calls.retrieve(webhook_endpoint_id, options))

    def update(
        self,
        webhook_endpoint_id: str,
        *,
        name: str | None = None,
        url: str | None = None,
        event_types: Sequence[str] | None = None,
        enabled: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> WebhookEndpoint:
        """What is left out stays."""
        body = {"name": name, "url": url, "event_types": event_types, "enabled": enabled}
        path = f"/{checked_id(webhook_endpoint_id)}"
        return self._driver.run(self._calls.post(WebhookEndpoint, path, body, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[WebhookEndpoint]:
        """The newest first, without those that came with a batch."""
        query = {"after": after, "limit": limit}
        steps = self._calls.page(WebhookEndpoint, "", query, options)
        return SyncPage(self._driver.run(steps), self._driver)

    def delete(
        self, webhook_endpoint_id: str, **options: Unpack[CallOptions]
    ) -> DeletedWebhookEndpoint:
        return self._driver.run(self._calls.delete(webhook_endpoint_id, options))

    def rotate_secret(
        self,
        webhook_endpoint_id: str,
        *,
        keep_old_secret_active_for_24_hours: bool = False,
        **options: Unpack[CallOptions],
    ) -> WebhookEndpoint:
        body = {"keep_old_secret_active_for_24_hours": keep_old_secret_active_for_24_hours}
        path = f"/{checked_id(webhook_endpoint_id)}/rotate_secret"
        return self._driver.run(self._calls.post(WebhookEndpoint, path, body, options))

    def test(
        self,
        webhook_endpoint_id: str,
        *,
        event_type: str = "batch.completed",
        **options: Unpack[CallOptions],
    ) -> WebhookTest:
        """Send a sample event now. Raises BadRequestError when the receiver does not take it."""
        path = f"/{checked_id(webhook_endpoint_id)}/test"
        steps = self._calls.post(WebhookTest, path, {"event_type": event_type}, options)
        return self._driver.run(steps)

    def deliveries(
        self,
        webhook_endpoint_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[WebhookDelivery]:
        """What was sent there, the newest first, with each attempt."""
        query = {"after": after, "limit": limit}
        path = f"/{checked_id(webhook_endpoint_id)}/deliveries"
        steps = self._calls.page(WebhookDelivery, path, query, options)
        return SyncPage(self._driver.run(steps), self._driver)

    def unwrap(
        self, payload: bytes | str, headers: Mapping[str, str], *, secret: str | None = None
    ) -> WebhookEvent:
        """As `verify_webhook`; without a secret, with that of GRISTMILL_WEBHOOK_SECRET."""
        return verify_webhook(payload, headers, secret_of(secret))

    def verify_signature(
        self,
        payload: bytes | str,
        headers: Mapping[str, str],
        *,
        secret: str | None = None,
        tolerance: float = TOLERANCE_S,
    ) -> None:
        verify_webhook(payload, headers, secret_of(secret), tolerance=tolerance)


class AsyncWebhooks:
    def __init__(self, calls: WebhookCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver
        self.events = AsyncWebhookEvents(EventCalls(calls.caller), driver)
        self.event_types = AsyncEventTypes(EventTypeCalls(calls.caller), driver)

    async def create(
        self,
        *,
        name: str,
        url: str,
        event_types: Sequence[str],
        **options: Unpack[CallOptions],
    ) -> WebhookEndpoint:
        body = {"name": name, "url": url, "event_types": list(event_types)}
        return await self._driver.run(self._calls.post(WebhookEndpoint, "", body, options))

    async def retrieve(
        self, webhook_endpoint_id: str, **options: Unpack[CallOptions]
    ) -> WebhookEndpoint:
        return await self._driver.run(self._calls.retrieve(webhook_endpoint_id, options))

    async def update(
        self,
        webhook_endpoint_id: str,
        *,
        name: str | None = None,
        url: str | None = None,
        event_types: Sequence[str] | None = None,
        enabled: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> WebhookEndpoint:
        body = {"name": name, "url": url, "event_types": event_types, "enabled": enabled}
        path = f"/{checked_id(webhook_endpoint_id)}"
        return await self._driver.run(self._calls.post(WebhookEndpoint, path, body, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[WebhookEndpoint]:
        query = {"after": after, "limit": limit}
        steps = self._calls.page(WebhookEndpoint, "", query, options)
        return AsyncPaginator(steps, self._driver)

    async def delete(
        self, webhook_endpoint_id: str, **options: Unpack[CallOptions]
    ) -> DeletedWebhookEndpoint:
        return await self._driver.run(self._calls.delete(webhook_endpoint_id, options))

    async def rotate_secret(
        self,
        webhook_endpoint_id: str,
        *,
        keep_old_secret_active_for_24_hours: bool = False,
        **options: Unpack[CallOptions],
    ) -> WebhookEndpoint:
        body = {"keep_old_secret_active_for_24_hours": keep_old_secret_active_for_24_hours}
        path = f"/{checked_id(webhook_endpoint_id)}/rotate_secret"
        return await self._driver.run(self._calls.post(WebhookEndpoint, path, body, options))

    async def test(
        self,
        webhook_endpoint_id: str,
        *,
        event_type: str = "batch.completed",
        **options: Unpack[CallOptions],
    ) -> WebhookTest:
        path = f"/{checked_id(webhook_endpoint_id)}/test"
        steps = self._calls.post(WebhookTest, path, {"event_type": event_type}, options)
        return await self._driver.run(steps)

    def deliveries(
        self,
        webhook_endpoint_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[WebhookDelivery]:
        query = {"after": after, "limit": limit}
        path = f"/{checked_id(webhook_endpoint_id)}/deliveries"
        steps = self._calls.page(WebhookDelivery, path, query, options)
        return AsyncPaginator(steps, self._driver)

    def unwrap(
        self, payload: bytes | str, headers: Mapping[str, str], *, secret: str | None = None
    ) -> WebhookEvent:
        return verify_webhook(payload, headers, secret_of(secret))

    def verify_signature(
        self,
        payload: bytes | str,
        headers: Mapping[str, str],
        *,
        secret: str | None = None,
        tolerance: float = TOLERANCE_S,
    ) -> None:
        verify_webhook(payload, headers, secret_of(secret), tolerance=tolerance)
