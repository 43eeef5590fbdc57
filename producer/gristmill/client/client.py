"""`Client`: the door to a service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx2

from gristmill.client.batches import BatchCalls, Batches
from gristmill.client.calls import Caller
from gristmill.client.drive import SyncDriver
from gristmill.client.estimates import (
    EstimateCalls,
    Estimates,
    Usage,
)
from gristmill.client.files import FileCalls, Files
from gristmill.client.handle import BatchHandle
from gristmill.client.models import KeyCalls, Keys, ModelCalls, Models
from gristmill.client.more_objects import Estimate
from gristmill.client.options import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_TIMEOUT_S,
    UNSET,
    Options,
    Unset,
    changed,
    find_address,
)
from gristmill.client.rows import Recipe
from gristmill.client.scoring import score_by
from gristmill.client.setup import at_least_one, log_as_asked
from gristmill.client.steps import TimeoutTypes
from gristmill.client.submit import (
    MAX_BYTES,
    MAX_ROWS,
    Source,
    batch_fields,
    estimate,
    submit,
)
from gristmill.client.transfer import OnBytes
from gristmill.client.webhooks import WebhookCalls, Webhooks
from gristmill.client.workers import WorkerCalls, Workers
from gristmill.data.rows import Source as RowSource
from gristmill.data.template import Template

if TYPE_CHECKING:
    from gristmill.score import Report, Task


class Client:
    """A service and a key. Threads may share one.

    Without arguments: GRISTMILL_BASE_URL and GRISTMILL_API_KEY, then the profile that
    `gristmill login` wrote, then OPENAI_BASE_URL with OPENAI_API_KEY.

    `timeout` is in seconds; calls that fail for a while are tried `max_retries` times more. Raises
    MissingApiKey, UsageError.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: TimeoutTypes = DEFAULT_TIMEOUT_S,
        max_retries: int = DEFAULT_MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
        profile: str | None = None,
        http_client: httpx2.Client | None = None,
    ) -> None:
        log_as_asked()
        address = find_address(api_key=api_key, base_url=base_url, profile=profile)
        options = address.options(
            timeout=timeout, max_retries=max_retries, default_headers=default_headers
        )
        self._set(options, SyncDriver(http_client or httpx2.Client(follow_redirects=True)))

    def _set(self, options: Options, driver: SyncDriver) -> None:
        caller = Caller(options)
        self._options = options
        self._driver = driver
        self._batch_calls = BatchCalls(caller)
        self.files = Files(FileCalls(caller), driver)
        self.batches = Batches(self._batch_calls, driver)
        self.models = Models(ModelCalls(caller), driver)
        self.keys = Keys(KeyCalls(caller), driver)
        self.webhooks = Webhooks(WebhookCalls(caller), driver)
        self.estimates = Estimates(EstimateCalls(caller), driver)
        self.usage = Usage(EstimateCalls(caller), driver)
        self.workers = Workers(WorkerCalls(caller), driver)

    @classmethod
    def _with(cls, options: Options) -> Self:
        """A client of its own connections, set up as another one is."""
        made = object.__new__(cls)
        made._set(options, SyncDriver(httpx2.Client(follow_redirects=True)))
        return made

    @property
    def base_url(self) -> str:
        return self._options.base_url

    def with_options(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: TimeoutTypes | Unset = UNSET,
        max_retries: int | None = None,
        default_headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Another client over the same connections. Headers are added to those that there are."""
        made = object.__new__(type(self))
        options = changed(
            self._options,
            api_key=api_key,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            default_headers=default_headers,
        )
        made._set(options, self._driver)
        return made

    def submit(
        self,
        source: RowSource,
        *,
        model: str | None = None,
        template: str | Template | None = None,
        system: str | Template | None = None,
        endpoint: str | None = None,
        id_column: str | None = None,
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        output_expires_after: Mapping[str, object] | None = None,
        priority: int | None = None,
        max_total_tokens: int | None = None,
        max_cost: float | None = None,
        webhook_url: str | None = None,
        webhook_secret: str | None = None,
        max_rows_per_batch: int = MAX_ROWS,
        max_bytes_per_batch: int = MAX_BYTES,
        extra_body: Mapping[str, object] | None = None,
        on_bytes: OnBytes | None = None,
        **params: Any,
    ) -> BatchHandle:
        """Answer every row of a data set.

        `source` is a path (JSONL, CSV, Parquet, Arrow; `.gz`, `.zst`; s3://), a DataFrame, a
        datasets.Dataset, or anything that yields dicts or texts; it is read once, in flat memory.
        With a `template` over its columns, "Review: {text}", each row is asked that; without one a
        row has `messages`, `prompt` or `input`, or is a whole request. `params` (temperature=0,
        max_tokens=64 …) go into each request, `extra_body` into the batch. `max_total_tokens` and
        `max_cost` end it early, with what is done by then. Its end is told to `webhook_url`, signed
        with the handle's `webhook_secret`. `on_bytes` hears how much of a file is uploaded, of how
        much.

        More rows or bytes than one batch may have become several, which the handle shows as one.
        Raises UsageError, DataInvalid with row and column, and APIError; then nothing is run.
        """
        recipe = Recipe.of(
            model=model,
            endpoint=endpoint,
            template=template,
            system=system,
            id_column=id_column,
            params=params,
        )
        rows = Source(
            source,
            recipe,
            max_rows=max_rows_per_batch,
            max_bytes=max_bytes_per_batch,
            on_bytes=on_bytes,
        )
        body = batch_fields(
            completion_window=completion_window,
            metadata=metadata,
            output_expires_after=output_expires_after,
            priority=priority,
            max_total_tokens=max_total_tokens,
            max_cost=max_cost,
            webhook_url=webhook_url,
            webhook_secret=webhook_secret,
            extra_body=extra_body,
        )
        made = self._driver.run(submit(self._batch_calls, rows, body))
        return BatchHandle(
            self._batch_calls,
            self._driver,
            [batch.id for batch in made],
            webhook_secret=str(body["webhook_secret"]) if webhook_url else None,
        )

    def estimate(
        self,
        source: RowSource,
        *,
        model: str | None = None,
        template: str | Template | None = None,
        system: str | Template | None = None,
        endpoint: str | None = None,
        id_column: str | None = None,
        **params: Any,
    ) -> Estimate:
        """What `submit` of the same would take: exact prompt tokens, cost, time, problems by line.

        Nothing is run.
        """
        recipe = Recipe.of(
            model=model,
            endpoint=endpoint,
            template=template,
            system=system,
            id_column=id_column,
            params=params,
        )
        return self._driver.run(estimate(self._batch_calls, Source(source, recipe)))

    def score(
        self,
        data: RowSource,
        task: Task,
        *,
        model: str,
        output: str | Path,
        id_column: str | None = None,
        limit: int | None = None,
        num_resamples: int = 1000,
        seed: int = 0,
        work_dir: Path | None = None,
    ) -> Report:
        """Score every row of a data set: `gristmill.score.score`, computed by this service."""
        return score_by(
            self,
            data,
            task,
            model=model,
            output=output,
            id_column=id_column,
            limit=limit,
            num_resamples=num_resamples,
            seed=seed,
            work_dir=work_dir,
        )

    def handle(self, *batch_ids: str) -> BatchHandle:
        """Of batches that are there: one, or several that are to be shown as one."""
        return BatchHandle(self._batch_calls, self._driver, at_least_one(batch_ids))

    def close(self) -> None:
        self._driver.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
