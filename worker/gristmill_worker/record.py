"""What a Worker records of its work, for metrics and traces. It decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from gristmill.marks import CloseReason
from gristmill.telemetry import NO_TELEMETRY, Telemetry, Tracer
from gristmill.telemetry.traces import NO_SPAN, Span
from gristmill.types import RowResult
from gristmill_worker.attempt import Attempt
from gristmill_worker.engine.base import Finished, StepOutput

#: Rows of one Attempt that have a span: spread over the Shard, and as many failed ones.
MAX_ROW_SPANS = 8


class Record:
    """One thread calls all methods but `done`, which any may. `wall` is Unix time."""

    def __init__(
        self,
        telemetry: Telemetry = NO_TELEMETRY,
        *,
        model: str = "",
        kv_tokens: int = 0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._is_on = telemetry.metrics.is_on
        self._metrics = telemetry.metrics
        self._tracer = telemetry.tracer
        self._wall = wall
        self._model = (model,)
        self._num_running = self._num_rows = 0
        self._spans: dict[str, _AttemptSpan] = {}
        kinds = ("prompt_computed", "prompt_cached", "generated", "resumed")
        self._computed, self._cached, self._generated, self._resumed = (
            (model, kind) for kind in kinds
        )
        self._metrics.put("gristmill_kv_capacity_tokens", self._model, value=kv_tokens)

    def step(self, output: StepOutput, took_s: float) -> None:
        """A step of the Engine took so many seconds; one that computed nothing is none."""
        if not self._is_on:
            return
        metrics, model = self._metrics, self._model
        self._num_running = output.num_running
        if output.num_rows:
            num_generated = len(output.advanced)
            num_tokens = output.num_prefill_tokens + output.num_decode_tokens
            metrics.observe("gristmill_step_seconds", model, value=took_s)
            metrics.observe("gristmill_step_rows", model, value=output.num_rows)
            metrics.observe("gristmill_step_tokens", model, value=num_tokens)
            if output.num_prefill_tokens:
                metrics.add("gristmill_tokens_total", self._computed, by=output.num_prefill_tokens)
            metrics.add("gristmill_tokens_total", self._generated, by=num_generated)
            metrics.put("gristmill_kv_used_tokens", model, value=output.kv_used_tokens)
            self._put_rows()
            if output.num_preempted:
                metrics.add("gristmill_preemptions_total", model, by=output.num_preempted)

    def answered(self, finished: Finished) -> None:
        """A Sequence has come to its end."""
        if not self._is_on or finished.error is not None:
            return
        metrics, model = self._metrics, self._model
        metrics.observe("gristmill_row_wait_seconds", model, value=finished.queue_s)
        metrics.add("gristmill_prefix_cache_lookups_total", model)
        if finished.usage.cached_tokens:
            metrics.add("gristmill_prefix_cache_hits_total", model)
            metrics.add("gristmill_tokens_total", self._cached, by=finished.usage.cached_tokens)

    def _ended(self, attempt: Attempt, result: RowResult) -> None:
        """All that was wanted of a Job is there."""
        if self._is_on:
            self._count_result(result)
        span = self._spans.get(attempt.id)
        if span is not None:
            span.row_ended(result)

    def _count_result(self, result: RowResult) -> None:
        metrics, model = self._metrics, self._model
        num_tokens = max((len(choice.token_ids) for choice in result.choices), default=0)
        if num_tokens:
            metrics.observe("gristmill_ttft_seconds", model, value=result.ttft_s)
        if num_tokens > 1:
            metrics.observe("gristmill_itl_seconds", model, value=result.itl_s)
        reason = "error" if result.error else result.choices[0].finish_reason.value
        metrics.add("gristmill_jobs_finished_total", (*model, reason))

    def resumed(self, num_tokens: int) -> None:
        """Tokens that an Attempt takes over from earlier ones."""
        if num_tokens:
            self._metrics.add("gristmill_tokens_total", self._resumed, by=num_tokens)

    def load(self, *, num_attempts: int, num_rows: int) -> None:
        """Shards and rows that the Worker holds just now."""
        self._num_rows = num_rows
        self._metrics.put("gristmill_leases", self._model, value=num_attempts)
        self._put_rows()

    def _put_rows(self) -> None:
        metrics, model = self._metrics, self._model
        num_running = min(self._num_running, self._num_rows)
        metrics.put("gristmill_running_rows", model, value=num_running)
        metrics.put("gristmill_waiting_rows", model, value=self._num_rows - num_running)

    def opened(self, attempt: Attempt) -> None:
        """Its first Segment is stored."""
        self.done("stored")
        attempt.on_ended = partial(self._ended, attempt)
        if self._tracer.is_on and attempt.pointer.traceparent:
            facts: dict[str, str | int | float | bool] = {
                "batch": attempt.shard.batch_id,
                "shard": attempt.shard.n,
                "attempt": attempt.id,
                "model": attempt.shard.model.name,
                "jobs": len(attempt.shard.jobs),
            }
            parent = attempt.pointer.traceparent
            span = self._tracer.start("attempt", parent, facts=facts)
            if span is not NO_SPAN:
                self._spans[attempt.id] = _AttemptSpan(
                    self._tracer, span, self._wall, num_jobs=len(attempt.shard.jobs)
                )

    def closed(self, attempt: Attempt, reason: CloseReason) -> None:
        self._metrics.add("gristmill_attempts_total", (*self._model, reason.value))
        if reason is CloseReason.FENCED:
            self._metrics.add("gristmill_lease_losses_total", self._model)
        span = self._spans.pop(attempt.id, None)
        if span is not None:
            span.end(reason)

    def done(self, what: str) -> None:
        """See Outbox.on_done."""
        if what == "stored":
            self._metrics.add("gristmill_segments_stored_total", self._model)
        else:
            self._metrics.add("gristmill_retries_total", (what,))


class _AttemptSpan:
    """The span of an Attempt, and those of some of its rows."""

    def __init__(
        self, tracer: Tracer, span: Span, wall: Callable[[], float], *, num_jobs: int
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._wall = wall
        self._every = -(-num_jobs // MAX_ROW_SPANS)
        self._num_failed = 0
        self._num_rows = 0

    def row_ended(self, result: RowResult) -> None:
        self._num_rows += 1
        is_of_sample = result.job_idx % self._every == 0
        self._num_failed += result.error is not None
        is_shown_failure = result.error is not None and self._num_failed <= MAX_ROW_SPANS
        if not (is_of_sample or is_shown_failure):
            return
        times = result.times
        prefill_s = times.prefill_s or 0.0
        ended_at = self._wall()
        began_at = ended_at - (times.queue_s + prefill_s + times.decode_s)
        facts: dict[str, str | int | float | bool] = {
            "job": result.job_idx,
            "rows": len(result.rows),
            "prompt_tokens": result.usage.prompt_tokens,
            "cached_tokens": result.usage.cached_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "queue_ms": round(times.queue_s * 1000, 1),
            "prefill_ms": round(prefill_s * 1000, 1),
            "decode_ms": round(times.decode_s * 1000, 1),
            "ttft_ms": round(result.ttft_s * 1000, 1),
            "itl_ms": round(result.itl_s * 1000, 1),
        }
        if result.choices:
            facts["finish_reason"] = result.choices[0].finish_reason.value
        span = self._tracer.start("row", self._span.traceparent, facts=facts, at=began_at)
        span.end(at=ended_at, error=result.error.code if result.error else "")

    def end(self, reason: CloseReason) -> None:
        self._span.tell(reason=reason.value, rows_ended=self._num_rows)
        self._span.end(error="" if reason is not CloseReason.FENCED else "lease_lost")
