"""What a Worker records of its work, for metrics and traces. It decides nothing.

The engine loop only notes what happened. A step of the Engine leaves nothing of other code in the
caches of the CPU, so that adding up each note at once would cost several times what adding up many
together does: that is done every so many notes, and when somebody looks.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import add

from gristmill.marks import CloseReason
from gristmill.telemetry import NO_TELEMETRY, Telemetry
from gristmill.types import RowResult
from gristmill_worker.attempt import Attempt
from gristmill_worker.attempt_span import AttemptSpan
from gristmill_worker.engine.base import Finished, StepOutput

#: Notes that are kept until they are added up.
_MAX_NOTES = 128


#: Of a step: seconds, rows, tokens of prompts, tokens decoded, tokens generated, rows preempted. A
#: tuple, since nothing is made faster.
_Step = tuple[float, int, int, int, int, int]


class Record:
    """One thread calls all methods but `add_up` and `done`, which any may. `wall` is Unix time."""

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
        self._notes: deque[_Step | Finished | RowResult] = deque()
        self._num_running = self._num_rows = self._kv_used_tokens = 0
        self._spans: dict[str, AttemptSpan] = {}
        self._metrics.put("gristmill_kv_capacity_tokens", self._model, value=kv_tokens)
        self._metrics.on_look(self.add_up)

    def step(self, output: StepOutput, took_s: float) -> None:
        """A step of the Engine took so many seconds; one that computed nothing is none."""
        if not self._is_on:
            return
        self._num_running = output.num_running
        if output.num_rows:
            self._kv_used_tokens = output.kv_used_tokens
            num_generated, num_preempted = len(output.advanced), output.num_preempted
            num_prefill, num_decode = output.num_prefill_tokens, output.num_decode_tokens
            self._note(
                (took_s, output.num_rows, num_prefill, num_decode, num_generated, num_preempted)
            )

    def answered(self, finished: Finished) -> None:
        """A Sequence has come to its end."""
        if self._is_on and finished.error is None:
            self._note(finished)

    def resumed(self, num_tokens: int) -> None:
        """Tokens that an Attempt takes over from earlier ones."""
        if num_tokens:
            self._metrics.add("gristmill_tokens_total", (*self._model, "resumed"), by=num_tokens)

    def load(self, *, num_attempts: int, num_rows: int) -> None:
        """Shards and rows that the Worker holds just now."""
        self._num_rows = num_rows
        self._metrics.put("gristmill_leases", self._model, value=num_attempts)

    def opened(self, attempt: Attempt) -> None:
        """Its first Segment is stored."""
        self.done("stored")
        attempt.on_ended = partial(self._ended, attempt.id)
        span = AttemptSpan.of(attempt, self._tracer, self._wall)
        if span is not None:
            self._spans[attempt.id] = span

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

    def add_up(self) -> None:
        """All that was noted until now."""
        steps: list[_Step] = []
        answers: list[Finished] = []
        results: list[RowResult] = []
        while self._notes:
            try:
                note = self._notes.popleft()
            except IndexError:  # another thread was faster
                break
            if isinstance(note, tuple):
                steps.append(note)
            elif isinstance(note, Finished):
                answers.append(note)
            else:
                results.append(note)
        self._add_steps(steps)
        self._add_answers(answers)
        self._add_results(results)
        num_running = min(self._num_running, self._num_rows)
        put, model = self._metrics.put, self._model
        put("gristmill_kv_used_tokens", model, value=self._kv_used_tokens)
        put("gristmill_running_rows", model, value=num_running)
        put("gristmill_waiting_rows", model, value=self._num_rows - num_running)

    def _note(self, note: _Step | Finished | RowResult) -> None:
        self._notes.append(note)
        if len(self._notes) >= _MAX_NOTES:
            self.add_up()

    def _ended(self, attempt_id: str, result: RowResult) -> None:
        """All that was wanted of a Job is there."""
        if self._is_on:
            self._note(result)
        span = self._spans.get(attempt_id)
        if span is not None:
            span.row_ended(result)

    def _add_steps(self, steps: list[_Step]) -> None:
        if not steps:
            return
        metrics, model = self._metrics, self._model
        seconds, rows, prefill, decode, generated, preempted = zip(*steps, strict=True)
        metrics.observe("gristmill_step_seconds", model, *seconds)
        metrics.observe("gristmill_step_rows", model, *rows)
        metrics.observe("gristmill_step_tokens", model, *map(add, prefill, decode))
        self._add_tokens("prompt_computed", prefill)
        self._add_tokens("generated", generated)
        if any(preempted):
            metrics.add("gristmill_preemptions_total", model, by=sum(preempted))

    def _add_answers(self, answers: list[Finished]) -> None:
        if not answers:
            return
        metrics, model = self._metrics, self._model
        metrics.observe("gristmill_row_wait_seconds", model, *(one.queue_s for one in answers))
        metrics.add("gristmill_prefix_cache_lookups_total", model, by=len(answers))
        cached = [one.usage.cached_tokens for one in answers if one.usage.cached_tokens]
        if cached:
            metrics.add("gristmill_prefix_cache_hits_total", model, by=len(cached))
            self._add_tokens("prompt_cached", cached)

    def _add_results(self, results: list[RowResult]) -> None:
        metrics, model = self._metrics, self._model
        ttft, itl = [], []
        reasons: Counter[str] = Counter()
        for result in results:
            num_tokens = max((len(choice.token_ids) for choice in result.choices), default=0)
            if num_tokens:
                ttft.append(result.ttft_s)
            if num_tokens > 1:
                itl.append(result.itl_s)
            reasons["error" if result.error else result.choices[0].finish_reason.value] += 1
        if ttft:
            metrics.observe("gristmill_ttft_seconds", model, *ttft)
        if itl:
            metrics.observe("gristmill_itl_seconds", model, *itl)
        for reason, num in reasons.items():
            metrics.add("gristmill_jobs_finished_total", (*model, reason), by=num)

    def _add_tokens(self, kind: str, counts: Iterable[int]) -> None:
        num_tokens = sum(counts)
        if num_tokens:
            self._metrics.add("gristmill_tokens_total", (*self._model, kind), by=num_tokens)
