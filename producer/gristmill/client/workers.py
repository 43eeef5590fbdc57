"""`client.workers`: the machines that answer. For keys with the scope `operator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from pydantic import Field

from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.objects import APIObject, PageContent
from gristmill.client.options import CallOptions
from gristmill.client.pages import AsyncPaginator, SyncPage
from gristmill.client.steps import Steps


class Worker(APIObject):
    """What a worker is, and how it was when it was last heard of."""

    id: str
    object: str = "worker"
    #: loading, ready, draining, ended, or lost: not heard of for 45 seconds.
    state: str = ""
    model: str = ""
    revision: str = ""
    dtype: str = ""
    host: str = ""
    device: str = ""
    version: str = ""
    first_seen_at: int = 0
    last_seen_at: int = 0
    #: The lanes that it listens to, the first one first.
    lanes: list[str] = Field(default_factory=list)
    features: list[str] = Field(default_factory=list)
    adapters: list[str] = Field(default_factory=list)
    max_row_tokens: int = 0
    max_rows: int = 0
    memory_bytes: int = 0
    kv_tokens: int | None = None
    kv_used_tokens: int = 0
    #: By the longest prompt of a class, in tokens; only what was measured.
    prefill_tokens_per_second: dict[int, float] = Field(default_factory=dict)
    decode_tokens_per_second: float | None = None
    #: Of as many rows as run there at once, by the tokens that each has.
    decode_tokens_per_second_by_length: dict[int, float] = Field(default_factory=dict)
    tokens_per_second: float = 0.0
    shards: int = 0
    shards_ahead: int = 0
    rows: int = 0
    rows_waiting: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    lease_losses: int = 0


@dataclass(frozen=True, slots=True)
class WorkerCalls:
    caller: Caller

    def list(self, query: Mapping[str, object], call: CallOptions) -> Steps[PageContent[Worker]]:
        return self.caller.page(
            Worker, self.caller.request("GET", "/workers", query=query, call=call)
        )


class Workers:
    """Those that announce themselves, of all models."""

    def __init__(self, calls: WorkerCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def list(
        self,
        *,
        include_ended: bool | None = None,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[Worker]:
        """Those that are lost too, for a day."""
        query = {"include_ended": include_ended, "after": after, "limit": limit}
        return SyncPage(self._driver.run(self._calls.list(query, options)), self._driver)


class AsyncWorkers:
    def __init__(self, calls: WorkerCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def list(
        self,
        *,
        include_ended: bool | None = None,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[Worker]:
        query = {"include_ended": include_ended, "after": after, "limit": limit}
        return AsyncPaginator(self._calls.list(query, options), self._driver)
