"""`client.estimates` and `client.usage`: what a batch would take, and what batches took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.files import checked_id
from gristmill.client.more_objects import Estimate, UsageLine, sum_of
from gristmill.client.objects import PageContent
from gristmill.client.options import CallOptions
from gristmill.client.pages import AsyncPaginator, SyncPage
from gristmill.client.steps import Sleep, Steps

_FIRST_POLL_S, _MAX_POLL_S = 0.25, 5.0


@dataclass(frozen=True, slots=True)
class EstimateCalls:
    caller: Caller

    def create(self, body: Mapping[str, object], call: CallOptions) -> Steps[Estimate]:
        request = self.caller.request("POST", "/estimate", body=body, call=call)
        return self.caller.one(Estimate, request)

    def retrieve(self, estimate_id: str, call: CallOptions) -> Steps[Estimate]:
        path = f"/estimate/{checked_id(estimate_id)}"
        return self.caller.one(Estimate, self.caller.request("GET", path, call=call))

    def made(self, files: Sequence[tuple[str, str]]) -> Steps[Estimate]:
        """Of (file, endpoint) each, together as one, as soon as it is made."""
        found = []
        for file_id, endpoint in files:
            body = {"input_file_id": file_id, "endpoint": endpoint}
            estimate = yield from self.create(body, {})
            poll_s = _FIRST_POLL_S
            while not estimate.has_ended:
                yield Sleep(poll_s)
                poll_s = min(poll_s * 1.5, _MAX_POLL_S)
                estimate = yield from self.retrieve(estimate.id, {})
            found.append(estimate)
        return sum_of(found)

    def usage(
        self, query: Mapping[str, object], call: CallOptions
    ) -> Steps[PageContent[UsageLine]]:
        return self.caller.page(
            UsageLine, self.caller.request("GET", "/usage", query=query, call=call)
        )


class Estimates:
    """Exact prompt tokens, cost, time and problems of a file, as a batch of it would be read."""

    def __init__(self, calls: EstimateCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def create(
        self, *, input_file_id: str, endpoint: str, **options: Unpack[CallOptions]
    ) -> Estimate:
        """It is made after this call: look at its `status`."""
        body = {"input_file_id": input_file_id, "endpoint": endpoint}
        return self._driver.run(self._calls.create(body, options))

    def retrieve(self, estimate_id: str, **options: Unpack[CallOptions]) -> Estimate:
        return self._driver.run(self._calls.retrieve(estimate_id, options))


class AsyncEstimates:
    def __init__(self, calls: EstimateCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    async def create(
        self, *, input_file_id: str, endpoint: str, **options: Unpack[CallOptions]
    ) -> Estimate:
        body = {"input_file_id": input_file_id, "endpoint": endpoint}
        return await self._driver.run(self._calls.create(body, options))

    async def retrieve(self, estimate_id: str, **options: Unpack[CallOptions]) -> Estimate:
        return await self._driver.run(self._calls.retrieve(estimate_id, options))


class Usage:
    def __init__(self, calls: EstimateCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def list(
        self,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        group_by: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[UsageLine]:
        """Rows and tokens by model and `day` (the default) or `batch`; Unix seconds."""
        query = _usage_query(start_time, end_time, group_by, after, limit)
        return SyncPage(self._driver.run(self._calls.usage(query, options)), self._driver)


class AsyncUsage:
    def __init__(self, calls: EstimateCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def list(
        self,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        group_by: str | None = None,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[UsageLine]:
        query = _usage_query(start_time, end_time, group_by, after, limit)
        return AsyncPaginator(self._calls.usage(query, options), self._driver)


def _usage_query(
    start_time: int | None,
    end_time: int | None,
    group_by: str | None,
    after: str | None,
    limit: int | None,
) -> dict[str, object]:
    return {
        "start_time": start_time,
        "end_time": end_time,
        "group_by": group_by,
        "after": after,
        "limit": limit,
    }
