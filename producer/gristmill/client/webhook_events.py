"""`client.webhooks.events`: what happened, who was told of it, and telling it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Unpack

from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.files import checked_id
from gristmill.client.more_objects import WebhookEvent, WebhookEventTypes, WebhookReplay
from gristmill.client.objects import PageContent
from gristmill.client.options import CallOptions
from gristmill.client.pages import AsyncPaginator, SyncPage
from gristmill.client.steps import Steps


@dataclass(frozen=True, slots=True)
class EventCalls:
    caller: Caller

    def retrieve(self, event_id: str, call: CallOptions) -> Steps[WebhookEvent]:
        path = f"/webhook_events/{checked_id(event_id)}"
        return self.caller.one(WebhookEvent, self.caller.request("GET", path, call=call))

    def replay(self, event_id: str, call: CallOptions) -> Steps[WebhookEvent]:
        path = f"/webhook_events/{checked_id(event_id)}/replay"
        return self.caller.one(WebhookEvent, self.caller.request("POST", path, body={}, call=call))

    def replay_between(
        self, asked: Mapping[str, object], call: CallOptions
    ) -> Steps[WebhookReplay]:
        """By as many calls as it takes; the sums of all of them."""
        body = {name: value for name, value in asked.items() if value is not None}
        num_events = num_deliveries = 0
        while True:
            path = "/webhook_events/replay"
            request = self.caller.request("POST", path, body=body, call=call)
            found = yield from self.caller.one(WebhookReplay, request)
            num_events += found.num_events
            num_deliveries += found.num_deliveries
            if not found.has_more:
                break
            body |= {"until": found.until, "after": found.last_id}
        found.num_events, found.num_deliveries = num_events, num_deliveries
        return found

    def list(
        self, query: Mapping[str, object], call: CallOptions
    ) -> Steps[PageContent[WebhookEvent]]:
        request = self.caller.request("GET", "/webhook_events", query=query, call=call)
        return self.caller.page(WebhookEvent, request)


@dataclass(frozen=True, slots=True)
class EventTypeCalls:
    caller: Caller

    def list(self, call: CallOptions) -> Steps[WebhookEventTypes]:
        request = self.caller.request("GET", "/webhook_event_types", call=call)
        return self.caller.one(WebhookEventTypes, request)


class EventTypes:
    """`client.webhooks.event_types`."""

    def __init__(self, calls: EventTypeCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def list(self, **options: Unpack[CallOptions]) -> WebhookEventTypes:
        """What can be told; `data` has the names."""
        return self._driver.run(self._calls.list(options))


class AsyncEventTypes:
    def __init__(self, calls: EventTypeCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    async def list(self, **options: Unpack[CallOptions]) -> WebhookEventTypes:
        return await self._driver.run(self._calls.list(options))


class WebhookEvents:
    def __init__(self, calls: EventCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def retrieve(self, event_id: str, **options: Unpack[CallOptions]) -> WebhookEvent:
        """With its deliveries."""
        return self._driver.run(self._calls.retrieve(event_id, options))

    def replay(self, event_id: str, **options: Unpack[CallOptions]) -> WebhookEvent:
        """Send it again, under the same id, to all who listen to such events."""
        return self._driver.run(self._calls.replay(event_id, options))

    def replay_between(
        self,
        since: float | datetime,
        until: float | datetime | None = None,
        *,
        event_types: Sequence[str] | None = None,
        webhook_endpoint_id: str | None = None,
        undelivered_only: bool = False,
        **options: Unpack[CallOptions],
    ) -> WebhookReplay:
        """Tell again what happened in a span of time, as after an outage of the receiver.

        From `since` to just before `until` (default: now), to all who listen or to one endpoint.
        With `undelivered_only` what has arrived there once is left out.
        """
        asked = {
            "since": _unix(since),
            "until": None if until is None else _unix(until),
            "event_types": None if event_types is None else [*event_types],
            "webhook_endpoint_id": webhook_endpoint_id,
            "undelivered_only": undelivered_only,
        }
        return self._driver.run(self._calls.replay_between(asked, options))

    def list(
        self,
        *,
        batch_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[WebhookEvent]:
        """The newest first."""
        query = {"batch_id": batch_id, "after": after, "limit": limit}
        return SyncPage(self._driver.run(self._calls.list(query, options)), self._driver)


class AsyncWebhookEvents:
    def __init__(self, calls: EventCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    async def retrieve(self, event_id: str, **options: Unpack[CallOptions]) -> WebhookEvent:
        return await self._driver.run(self._calls.retrieve(event_id, options))

    async def replay(self, event_id: str, **options: Unpack[CallOptions]) -> WebhookEvent:
        return await self._driver.run(self._calls.replay(event_id, options))

    async def replay_between(
        self,
        since: float | datetime,
        until: float | datetime | None = None,
        *,
        event_types: Sequence[str] | None = None,
        webhook_endpoint_id: str | None = None,
        undelivered_only: bool = False,
        **options: Unpack[CallOptions],
    ) -> WebhookReplay:
        asked = {
            "since": _unix(since),
            "until": None if until is None else _unix(until),
            "event_types": None if event_types is None else [*event_types],
            "webhook_endpoint_id": webhook_endpoint_id,
            "undelivered_only": undelivered_only,
        }
        return await self._driver.run(self._calls.replay_between(asked, options))

    def list(
        self,
        *,
        batch_id: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[WebhookEvent]:
        query = {"batch_id": batch_id, "after": after, "limit": limit}
        return AsyncPaginator(self._calls.list(query, options), self._driver)


def _unix(moment: float | datetime) -> int:
    """A time without a zone is that of this machine."""
    return int(moment.timestamp() if isinstance(moment, datetime) else moment)
