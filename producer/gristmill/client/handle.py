"""What `client.submit` gives: one or several batches, as one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.client.batches import BatchCalls
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.handle_calls import (
    cancel_all,
    estimate_all,
    parquet_path,
    retry_all,
    tell_all,
    write_results,
)
from gristmill.client.more_objects import Estimate
from gristmill.client.progress import progress_shown
from gristmill.client.results import Result, results
from gristmill.client.state import BatchState, look, wait
from gristmill.client.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]


class BatchHandle:
    """Holds nothing but ids: `client.handle(*handle.ids)` is the same one, in any process."""

    def __init__(
        self,
        calls: BatchCalls,
        driver: SyncDriver,
        batch_ids: Sequence[str],
        *,
        webhook_secret: str | None = None,
    ) -> None:
        self._calls = calls
        self._driver = driver
        #: In the order of the rows.
        self.ids = tuple(batch_ids)
        #: What deliveries to `webhook_url` are signed with, where one was given.
        self.webhook_secret = webhook_secret

    def __repr__(self) -> str:
        return f"BatchHandle({', '.join(self.ids)})"

    def status(self) -> BatchState:
        """How far it is now."""
        return self._driver.run(look(self._calls, list(self.ids)))

    def wait(
        self,
        *,
        progress: bool = True,
        timeout: float | None = None,
        poll_interval: float | None = None,
    ) -> BatchState:
        """The state at the end. Ctrl-C ends the waiting, never the batch.

        `timeout` and `poll_interval` are in seconds. Raises WaitTimeout.
        """
        with progress_shown(progress) as on_state:
            return self._driver.run(
                wait(
                    self._calls,
                    list(self.ids),
                    timeout=timeout,
                    poll_interval=poll_interval,
                    on_state=on_state,
                )
            )

    def results(self, *, ordered: bool = True, after: str | None = None) -> Iterator[Result]:
        """Every row, answers and failures alike, each once.

        `ordered`: in the order of the input, from the end of the batch on; otherwise as they
        come, from now until its end. `after` is the `cursor` of the last row seen, and goes on
        behind it. Raises BatchFailed when the input failed validation.
        """
        return self._driver.iterate(
            results(self._calls, list(self.ids), ordered=ordered, after=after)
        )

    def to_pandas(self) -> pd.DataFrame:
        """A row for each row, in the order of the input. Needs pandas."""
        return frame_of(self.results())

    def to_parquet(self, path: str | os.PathLike[str]) -> int:
        """The same into a `.parquet` file, with typed columns and the receipts. Needs pyarrow."""
        return self.download(parquet_path(path))

    def download(
        self, path: str | os.PathLike[str], *, join: Any = None, id_column: str | None = None
    ) -> int:
        """All rows into a file, in the order of the input, and how many there were.

        The name says the format: `.jsonl` (also with `.gz` or `.zst`) has the lines of the
        result files; `.csv`, `.parquet` and `.arrow` have columns. With `join`, the data set that
        was submitted, each of its rows comes with its result behind. A download that broke off is
        gone on with, also by another process.
        """
        return self._driver.run(
            write_results(self._calls, list(self.ids), Path(path), join=join, id_column=id_column)
        )

    def estimate(self) -> Estimate:
        """What its rows take, as far as can be told without running them."""
        return self._driver.run(estimate_all(self._calls, list(self.ids)))

    def on_done(self, url: str, *, secret: str | None = None) -> str:
        """Tell this URL when it has ended: once for each of its batches, signed with the secret
        that is returned (see `verify_webhook`). Raises BadRequestError when it has ended already.
        """
        self.webhook_secret = self._driver.run(
            tell_all(self._calls, list(self.ids), url, secret or self.webhook_secret)
        )
        return self.webhook_secret

    def cancel(self) -> BatchState:
        """Stop it. What is finished is kept, and is in the results."""
        return self._driver.run(cancel_all(self._calls, list(self.ids)))

    def retry_failed(self) -> BatchHandle:
        """New batches of the rows that failed or were never run. Raises UsageError for none."""
        made = self._driver.run(retry_all(self._calls, list(self.ids)))
        return BatchHandle(self._calls, self._driver, [batch.id for batch in made])


class AsyncBatchHandle:
    """The same for asyncio."""

    def __init__(
        self,
        calls: BatchCalls,
        driver: AsyncDriver,
        batch_ids: Sequence[str],
        *,
        webhook_secret: str | None = None,
    ) -> None:
        self._calls = calls
        self._driver = driver
        self.ids = tuple(batch_ids)
        #: What deliveries to `webhook_url` are signed with, where one was given.
        self.webhook_secret = webhook_secret

    def __repr__(self) -> str:
        return f"AsyncBatchHandle({', '.join(self.ids)})"

    async def status(self) -> BatchState:
        return await self._driver.run(look(self._calls, list(self.ids)))

    async def wait(
        self,
        *,
        progress: bool = True,
        timeout: float | None = None,
        poll_interval: float | None = None,
    ) -> BatchState:
        with progress_shown(progress) as on_state:
            return await self._driver.run(
                wait(
                    self._calls,
                    list(self.ids),
                    timeout=timeout,
                    poll_interval=poll_interval,
                    on_state=on_state,
                )
            )

    def results(self, *, ordered: bool = True, after: str | None = None) -> AsyncIterator[Result]:
        return self._driver.iterate(
            results(self._calls, list(self.ids), ordered=ordered, after=after)
        )

    async def to_pandas(self) -> pd.DataFrame:
        return frame_of([row async for row in self.results()])

    async def to_parquet(self, path: str | os.PathLike[str]) -> int:
        return await self.download(parquet_path(path))

    async def download(
        self, path: str | os.PathLike[str], *, join: Any = None, id_column: str | None = None
    ) -> int:
        return await self._driver.run(
            write_results(self._calls, list(self.ids), Path(path), join=join, id_column=id_column)
        )

    async def estimate(self) -> Estimate:
        return await self._driver.run(estimate_all(self._calls, list(self.ids)))

    async def on_done(self, url: str, *, secret: str | None = None) -> str:
        self.webhook_secret = await self._driver.run(
            tell_all(self._calls, list(self.ids), url, secret or self.webhook_secret)
        )
        return self.webhook_secret

    async def cancel(self) -> BatchState:
        return await self._driver.run(cancel_all(self._calls, list(self.ids)))

    async def retry_failed(self) -> AsyncBatchHandle:
        made = await self._driver.run(retry_all(self._calls, list(self.ids)))
        return AsyncBatchHandle(self._calls, self._driver, [batch.id for batch in made])
