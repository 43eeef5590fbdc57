"""`client.batches`: create, list, retrieve, cancel, and the rows of one as they come."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.files import FileCalls, checked_id
from gristmill.client.handle_calls import write_results
from gristmill.client.more_objects import WebhookEndpoint
from gristmill.client.objects import Batch, BatchDeleted, PageContent
from gristmill.client.options import CallOptions
from gristmill.client.pages import AsyncPaginator, SyncPage
from gristmill.client.results import Result, accepted, results
from gristmill.client.steps import Request, Steps


@dataclass(frozen=True, slots=True)
class BatchCalls:
    """The calls as Steps."""

    caller: Caller

    @property
    def files(self) -> FileCalls:
        return FileCalls(self.caller)

    def create(self, body: Mapping[str, object], call: CallOptions) -> Steps[Batch]:
        given = {name: value for name, value in body.items() if value is not None}
        return self.caller.one(
            Batch, self.caller.request("POST", "/batches", body=given, call=call)
        )

    def retrieve(self, batch_id: str, call: CallOptions) -> Steps[Batch]:
        return self.caller.one(
            Batch, self.caller.request("GET", f"/batches/{checked_id(batch_id)}", call=call)
        )

    def list(self, query: Mapping[str, object], call: CallOptions) -> Steps[PageContent[Batch]]:
        return self.caller.page(
            Batch, self.caller.request("GET", "/batches", query=query, call=call)
        )

    def cancel(self, batch_id: str, call: CallOptions) -> Steps[Batch]:
        path = f"/batches/{checked_id(batch_id)}/cancel"
        return self.caller.one(Batch, self.caller.request("POST", path, body={}, call=call))

    def retry(self, batch_id: str, call: CallOptions) -> Steps[Batch]:
        path = f"/batches/{checked_id(batch_id)}/retry"
        return self.caller.one(Batch, self.caller.request("POST", path, body={}, call=call))

    def delete(self, batch_id: str, call: CallOptions) -> Steps[BatchDeleted]:
        path = f"/batches/{checked_id(batch_id)}"
        return self.caller.one(BatchDeleted, self.caller.request("DELETE", path, call=call))

    def on_done(
        self, batch_id: str, body: Mapping[str, object], call: CallOptions
    ) -> Steps[WebhookEndpoint]:
        path = f"/batches/{checked_id(batch_id)}/webhook"
        return self.caller.one(
            WebhookEndpoint, self.caller.request("POST", path, body=body, call=call)
        )

    def accepted(self, batch_id: str, after: str | None, limit: int | None) -> Request:
        """What gives the rows that count so far, behind a cursor, as NDJSON."""
        return self.caller.request(
            "GET",
            f"/batches/{checked_id(batch_id)}/results",
            query={"after": after, "limit": limit},
            accept="application/x-ndjson",
        )


class Batches:
    def __init__(self, calls: BatchCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def create(
        self,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        output_expires_after: Mapping[str, object] | None = None,
        **options: Unpack[CallOptions],
    ) -> Batch:
        """A batch of an uploaded file. The service looks at the file after this call."""
        body = {
            "input_file_id": input_file_id,
            "endpoint": endpoint,
            "completion_window": completion_window,
            "metadata": metadata,
            "output_expires_after": output_expires_after,
        }
        return self._driver.run(self._calls.create(body, options))

    def retrieve(self, batch_id: str, **options: Unpack[CallOptions]) -> Batch:
        return self._driver.run(self._calls.retrieve(batch_id, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[Batch]:
        """The newest first."""
        query = {"after": after, "limit": limit}
        return SyncPage(self._driver.run(self._calls.list(query, options)), self._driver)

    def cancel(self, batch_id: str, **options: Unpack[CallOptions]) -> Batch:
        """Stop it. What is finished is kept, and is in the results."""
        return self._driver.run(self._calls.cancel(batch_id, options))

    def retry(self, batch_id: str, **options: Unpack[CallOptions]) -> Batch:
        """A batch of the rows that failed or were never run. Raises BadRequestError for none."""
        return self._driver.run(self._calls.retry(batch_id, options))

    def delete(self, batch_id: str, **options: Unpack[CallOptions]) -> BatchDeleted:
        """Forget a batch that has ended. Its files stay."""
        return self._driver.run(self._calls.delete(batch_id, options))

    def results(
        self, batch_id: str, *, ordered: bool = True, after: str | None = None
    ) -> Iterator[Result]:
        """As `BatchHandle.results`."""
        return self._driver.iterate(results(self._calls, [batch_id], ordered=ordered, after=after))

    def download(
        self,
        batch_id: str,
        path: str | os.PathLike[str],
        *,
        join: Any = None,
        id_column: str | None = None,
    ) -> int:
        """As `BatchHandle.download`."""
        steps = write_results(self._calls, [batch_id], Path(path), join=join, id_column=id_column)
        return self._driver.run(steps)

    def accepted(
        self, batch_id: str, *, after: str | None = None, limit: int | None = None
    ) -> Iterator[Result]:
        """The rows that count by now, as they came, without waiting for more."""
        return self._driver.iterate(accepted(self._calls, batch_id, after=after, limit=limit))


class AsyncBatches:
    def __init__(self, calls: BatchCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    async def create(
        self,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        output_expires_after: Mapping[str, object] | None = None,
        **options: Unpack[CallOptions],
    ) -> Batch:
        body = {
            "input_file_id": input_file_id,
            "endpoint": endpoint,
            "completion_window": completion_window,
            "metadata": metadata,
            "output_expires_after": output_expires_after,
        }
        return await self._driver.run(self._calls.create(body, options))

    async def retrieve(self, batch_id: str, **options: Unpack[CallOptions]) -> Batch:
        return await self._driver.run(self._calls.retrieve(batch_id, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[Batch]:
        query = {"after": after, "limit": limit}
        return AsyncPaginator(self._calls.list(query, options), self._driver)

    async def cancel(self, batch_id: str, **options: Unpack[CallOptions]) -> Batch:
        return await self._driver.run(self._calls.cancel(batch_id, options))

    async def retry(self, batch_id: str, **options: Unpack[CallOptions]) -> Batch:
        return await self._driver.run(self._calls.retry(batch_id, options))

    async def delete(self, batch_id: str, **options: Unpack[CallOptions]) -> BatchDeleted:
        return await self._driver.run(self._calls.delete(batch_id, options))

    def results(
        self, batch_id: str, *, ordered: bool = True, after: str | None = None
    ) -> AsyncIterator[Result]:
        return self._driver.iterate(results(self._calls, [batch_id], ordered=ordered, after=after))

    async def download(
        self,
        batch_id: str,
        path: str | os.PathLike[str],
        *,
        join: Any = None,
        id_column: str | None = None,
    ) -> int:
        steps = write_results(self._calls, [batch_id], Path(path), join=join, id_column=id_column)
        return await self._driver.run(steps)

    def accepted(
        self, batch_id: str, *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Result]:
        return self._driver.iterate(accepted(self._calls, batch_id, after=after, limit=limit))
