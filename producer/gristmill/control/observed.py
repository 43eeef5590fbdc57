"""What the control side tells of its own work: how long pieces of it take, and what comes of them.

Told after the transaction that made it true, so that nothing is counted that was rolled back. What
a process that is killed had not told yet, nobody tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from gristmill.control.base import Control
from gristmill.control.budget import price_of
from gristmill.control.counted import Counted
from gristmill.ledger.batch import Batch
from gristmill.ledger.status import END_OF, BatchStatus, FreezeReason
from gristmill.telemetry import Span

P = ParamSpec("P")
T = TypeVar("T")
Timed: TypeAlias = Callable[Concatenate[Control, P], T]


def timed(task: str) -> Callable[[Timed[P, T]], Timed[P, T]]:
    """Each call of the function counts as a piece of this task, however it ends."""

    def decorate(function: Timed[P, T]) -> Timed[P, T]:
        @wraps(function)
        def timing(control: Control, /, *args: P.args, **kwargs: P.kwargs) -> T:
            began = time.perf_counter()
            try:
                return function(control, *args, **kwargs)
            finally:
                control.telemetry.metrics.observe(
                    "gristmill_control_seconds", (task,), time.perf_counter() - began
                )

        return cast(Timed[P, T], timing)

    return decorate


def span_of(control: Control, batch: Batch, name: str) -> Span:
    """A span of something that is done for a batch, which has just begun."""
    facts = {"batch": batch.id, "model": batch.model.name}
    return control.telemetry.tracer.start(name, batch.traceparent, facts=facts)


def tell_counted(control: Control, batch: Batch, counted: Counted) -> None:
    """`batch` as it was found by the transaction."""
    metrics, model = control.telemetry.metrics, batch.model.name
    if not metrics.is_on:
        return
    if counted.num_segments:
        metrics.add("gristmill_segments_accepted_total", (model,), by=counted.num_segments)
    _add(control, "gristmill_rows_total", model, completed=counted.num_completed)
    _add(control, "gristmill_rows_total", model, failed=counted.num_failed)
    if counted.queue_waits_s:
        metrics.observe("gristmill_queue_wait_seconds", (model,), *counted.queue_waits_s)
    usage = counted.usage
    _add(
        control,
        "gristmill_tokens_accepted_total",
        model,
        prompt=usage.prompt_tokens,
        cached=usage.cached_tokens,
        completion=usage.completion_tokens,
    )
    price = price_of(batch)
    if price is not None:
        labels = (model, control.prices.currency)
        metrics.add("gristmill_cost_total", labels, by=float(price.cost(usage)))


def tell_read(control: Control, batch: Batch, *, num_rows: int) -> None:
    """A window of the batch's input."""
    labels = (batch.model.name,)
    control.telemetry.metrics.add("gristmill_rows_ingested_total", labels, by=num_rows)


def tell_sent(control: Control, batch: Batch, lane: str) -> None:
    """A Shard is on its Lane, for the first time or after it was called back."""
    control.telemetry.metrics.add("gristmill_shards_sent_total", (lane, batch.model.name))


def tell_end(control: Control, batch: Batch) -> None:
    """A frozen batch has its result files; rows without an answer ended with it."""
    reason = batch.freeze_reason
    assert reason is not None, "only a frozen batch is published"
    outcome = {
        FreezeReason.EXPIRED: "expired",
        FreezeReason.CANCELLED: "cancelled",
        FreezeReason.BUDGET: "budget",
    }.get(reason)
    if outcome is not None:
        num_unanswered = batch.num_error_lines - batch.failed
        _add(control, "gristmill_rows_total", batch.model.name, **{outcome: num_unanswered})
    control.telemetry.metrics.add("gristmill_batches_ended_total", (END_OF[reason].value,))


def tell_refused(control: Control) -> None:
    """A batch has failed validation."""
    control.telemetry.metrics.add("gristmill_batches_ended_total", (BatchStatus.FAILED.value,))


def _add(control: Control, name: str, model: str, **counts: int) -> None:
    for word, num in counts.items():
        if num > 0:
            control.telemetry.metrics.add(name, (model, word), by=num)
