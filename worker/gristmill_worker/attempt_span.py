"""The span of an Attempt, and those of some of its rows. They have no text of any caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from gristmill.marks import CloseReason
from gristmill.telemetry import Span, Tracer
from gristmill.telemetry.traces import NO_SPAN, Fact
from gristmill.types import RowResult
from gristmill_worker.attempt import Attempt

#: Rows of one Attempt that have a span: spread over the Shard, and as many failed ones.
MAX_ROW_SPANS = 8


class AttemptSpan:
    """Rows are noted as they end; their spans are made at the end of the Attempt, all at once."""

    def __init__(
        self, tracer: Tracer, span: Span, wall: Callable[[], float], *, num_jobs: int
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._wall = wall
        self._every = -(-num_jobs // MAX_ROW_SPANS)
        self._rows: list[tuple[RowResult, float]] = []
        self._num_failed = 0
        self._num_rows = 0

    @classmethod
    def of(cls, attempt: Attempt, tracer: Tracer, wall: Callable[[], float]) -> Self | None:
        """None where nobody traces what the Attempt belongs to."""
        parent = attempt.pointer.traceparent
        if not tracer.is_on or not parent:
            return None
        num_jobs = len(attempt.shard.jobs)
        facts: dict[str, Fact] = {
            "batch": attempt.shard.batch_id,
            "shard": attempt.shard.n,
            "attempt": attempt.id,
            "model": attempt.shard.model.name,
            "jobs": num_jobs,
        }
        span = tracer.start("attempt", parent, facts=facts)
        return None if span is NO_SPAN else cls(tracer, span, wall, num_jobs=num_jobs)

    def row_ended(self, result: RowResult) -> None:
        self._num_rows += 1
        is_of_sample = result.job_idx % self._every == 0
        self._num_failed += result.error is not None
        is_shown_failure = result.error is not None and self._num_failed <= MAX_ROW_SPANS
        if is_of_sample or is_shown_failure:
            self._rows.append((result, self._wall()))

    def end(self, reason: CloseReason) -> None:
        for result, ended_at in self._rows:
            self._tell_row(result, ended_at)
        self._span.tell(reason=reason.value, rows_ended=self._num_rows)
        self._span.end(error="" if reason is not CloseReason.FENCED else "lease_lost")

    def _tell_row(self, result: RowResult, ended_at: float) -> None:
        times = result.times
        prefill_s = times.prefill_s or 0.0
        began_at = ended_at - (times.queue_s + prefill_s + times.decode_s)
        facts: dict[str, Fact] = {
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
