"""`AsyncClient`: the door to a service for asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx2

from gristmill.client.batches import AsyncBatches, BatchCalls
from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver
from gristmill.client.estimates import (
    AsyncEstimates,
    AsyncUsage,
    EstimateCalls,
)
from gristmill.client.files import AsyncFiles, FileCalls
from gristmill.client.handle import AsyncBatchHandle
from gristmill.client.models import AsyncKeys, AsyncModels, KeyCalls, ModelCalls
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
from gristmill.client.scoring import score_in_thread
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
from gristmill.client.webhooks import AsyncWebhooks, WebhookCalls
from gristmill.client.workers import AsyncWorkers, WorkerCalls
from gristmill.data.rows import Source as RowSource
from gristmill.data.template import Template

if TYPE_CHECKING:
    from gristmill.score import Report, Task


class AsyncClient:
    """The same for asyncio: `await` what asks the service, `async for` what gives many."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: TimeoutTypes = DEFAULT_TIMEOUT_S,
        max_retries: int = DEFAULT_MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
        profile: str | None = None,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        log_as_asked()
        address = find_address(api_key=api_key, base_url=base_url, profile=profile)
        options = address.options(
            timeout=timeout, max_retries=max_retries, default_headers=default_headers
        )
        http = http_client or httpx2.AsyncClient(follow_redirects=True)
        self._set(options, AsyncDriver(http))

    def _set(self, options: Options, driver: AsyncDriver) -> None:
        caller = Caller(options)
        self._options = options
        self._driver = driver
        self._batch_calls = BatchCalls(caller)
        self.files = AsyncFiles(FileCalls(caller), driver)
        self.batches = AsyncBatches(self._batch_calls, driver)
        self.models = AsyncModels(ModelCalls(caller), driver)
        self.keys = AsyncKeys(KeyCalls(caller), driver)
        self.webhooks = AsyncWebhooks(WebhookCalls(caller), driver)
        self.estimates = AsyncEstimates(EstimateCalls(caller), driver)
        self.usage = AsyncUsage(EstimateCalls(caller), driver)
        self.workers = AsyncWorkers(WorkerCalls(caller), driver)

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

    async def submit(
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
    ) -> AsyncBatchHandle:
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
        made = await self._driver.run(submit(self._batch_calls, rows, body))
        return AsyncBatchHandle(
            self._batch_calls,
            self._driver,
            [batch.id for batch in made],
            webhook_secret=str(body["webhook_secret"]) if webhook_url else None,
        )

    async def estimate(
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
        recipe = Recipe.of(
            model=model,
            endpoint=endpoint,
            template=template,
            system=system,
            id_column=id_column,
            params=params,
        )
        return await self._driver.run(estimate(self._batch_calls, Source(source, recipe)))

    async def score(
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
        return await score_in_thread(
            self._options,
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

    def handle(self, *batch_ids: str) -> AsyncBatchHandle:
        return AsyncBatchHandle(self._batch_calls, self._driver, at_least_one(batch_ids))

    async def close(self) -> None:
        await self._driver.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
