"""The rows that the Engine has, and the Attempts that they belong to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from gristmill.compute import WorkerStats
from gristmill.types import RowError
from gristmill_worker.admission import Admission
from gristmill_worker.attempt import Attempt, Start
from gristmill_worker.engine.base import Engine, Finished, Generated, StepOutput
from gristmill_worker.memory import free_device_memory, is_out_of_memory
from gristmill_worker.record import Record
from gristmill_worker.speeds import Speeds

log = logging.getLogger(__name__)


class EngineRows:
    """Belongs to the engine loop; `wall` is Unix time."""

    def __init__(
        self, engine: Engine, *, monotonic: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._monotonic = monotonic
        self._wall = wall
        self.speeds = Speeds()
        self.record = Record()
        #: Behind the last step.
        self.kv_used_tokens = 0
        self._admission = Admission(engine.max_num_seqs)
        self._attempt_of: dict[str, Attempt] = {}
        self.stats = WorkerStats()

    @property
    def num_live(self) -> int:
        return self._engine.num_live

    def generated(self, seq_id: str) -> Generated:
        return self._engine.generated(seq_id)

    def step(self) -> bool:
        """One step of the Engine; whether a row, or its prefill, has come to its end."""
        num_prefilling = self.speeds.num_prefilling
        began = self._monotonic()
        output = self._step()
        took_s = self._monotonic() - began
        self.speeds.record(output, took_s)
        self.record.step(output, took_s)
        self.kv_used_tokens = output.kv_used_tokens
        return self._take(output) or self.speeds.num_prefilling != num_prefilling

    def num_tokens_ahead(self, attempts: Iterable[Attempt]) -> int:
        """Expected tokens of rows that wait, or whose prefill has not come to its end."""
        num_tokens = 0
        for attempt in attempts:
            num_rows = len(attempt.waiting) + sum(map(self.speeds.is_prefilling, attempt.running))
            num_tokens += attempt.num_tokens * num_rows // len(attempt.shard.jobs)
        return num_tokens

    def remove(self, attempt: Attempt) -> None:
        """What runs of an Attempt is not wanted any more."""
        for seq_id in attempt.running:
            self._engine.cancel(seq_id)
            self.speeds.forget(seq_id)
            self._attempt_of.pop(seq_id, None)

    def count_resumed(self, attempt: Attempt) -> None:
        """Tokens that an Attempt takes over from earlier ones."""
        num_tokens = sum(len(start.resume.token_ids) for start in attempt.waiting)
        self.record.resumed(num_tokens)
        self._count(num_resumed_tokens=num_tokens)

    def fill(self, attempts: Iterable[Attempt], mark: Callable[[Attempt], None]) -> None:
        """Give the Engine what waits. `mark` stores which row runs alone from now on."""
        for attempt in attempts:
            if attempt.is_isolated:
                self._next_alone(attempt, mark)
                continue
            while attempt.waiting and self._has_room():
                self._start(attempt, attempt.waiting.popleft())

    def _next_alone(self, attempt: Attempt, mark: Callable[[Attempt], None]) -> None:
        """The next row of a Shard that kills its workers, once the Store knows which one it is."""
        if attempt.is_storing or attempt.next_alone is None:
            return
        if attempt.next_alone != attempt.alone:
            if not self._engine.num_live:
                attempt.begin_alone()
                mark(attempt)
            return
        while attempt.next_alone == attempt.alone and self._has_room():
            self._start(attempt, attempt.waiting.popleft())

    def _has_room(self) -> bool:
        return self._admission.admits(self._engine.num_live)

    def _start(self, attempt: Attempt, start: Start) -> None:
        self._attempt_of[start.seq_id] = attempt
        num_tokens = start.job.num_prompt_tokens + len(start.resume.token_ids)
        self.speeds.begin(start.seq_id, num_tokens)
        self._engine.add(start.seq_id, start.job, start.resume)

    def _step(self) -> StepOutput:
        try:
            output = self._engine.step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return self._after_out_of_memory(error)
        self._admission.record_step()
        return output

    def _after_out_of_memory(self, error: Exception) -> StepOutput:
        """Take all rows out, and try again with fewer; one that is alone cannot be computed."""
        seq_ids = list(self._attempt_of)
        log.warning("out of memory rows=%d reason=%s", len(seq_ids), error)
        resumes = {seq_id: self._engine.generated(seq_id) for seq_id in seq_ids}
        for seq_id in seq_ids:
            self._engine.cancel(seq_id)
            self.speeds.forget(seq_id)
        free_device_memory()
        if len(seq_ids) == 1:
            refusal = RowError(
                "out_of_memory",
                f"The worker has not the memory for this row alone: {error}",
                status_code=500,
                type="server_error",
            )
            return StepOutput([Finished(seq_ids[0], error=refusal)])
        self._admission.shrink(len(seq_ids))
        for seq_id in reversed(seq_ids):
            attempt = self._attempt_of.pop(seq_id)
            attempt.put_back(seq_id, resumes[seq_id])
        return StepOutput()

    def _take(self, output: StepOutput) -> bool:
        now = int(self._wall())
        for finished in output.finished:
            attempt = self._attempt_of.pop(finished.seq_id, None)
            if attempt is None:
                continue  # its row has failed in this very step
            self.record.answered(finished)
            for seq_id in attempt.finish(finished, at=now):
                self._engine.cancel(seq_id)
                self.speeds.forget(seq_id)
                self._attempt_of.pop(seq_id, None)
        self._count(
            num_prefill_tokens=output.num_prefill_tokens,
            num_generated_tokens=len(output.advanced),
            num_preempted=output.num_preempted,
        )
        return bool(output.finished)

    def _count(self, **more: int) -> None:
        self.stats = replace(
            self.stats, **{name: getattr(self.stats, name) + n for name, n in more.items()}
        )
