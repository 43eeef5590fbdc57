"""An Engine without weights: the real Scheduler and BlockManager, and answers that are known.

What each step decodes goes into the history of the process before it counts.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from fake_engine import fake_text, fake_tokens

from gristmill import crash_points
from gristmill.types import FinishReason, Job, Usage
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.scheduler import Scheduler
from gristmill_worker.engine.sequence import Sequence

Tokens = dict[str, list[tuple[int, int, int]]]


def by_attempt(decoded: list[tuple[str, int]]) -> Tokens:
    """(Sequence, position) of tokens, as [Job, Choice, position] by Attempt."""
    tokens: Tokens = defaultdict(list)
    for seq_id, position in decoded:
        attempt, job_idx, choice_idx = seq_id.split("/")
        tokens[attempt].append((int(job_idx), int(choice_idx), position))
    return tokens


class ScriptedEngine:
    """Answers as FakeEngine does. `step_s` is how long a step takes, in seconds."""

    BAD = 666

    def __init__(
        self,
        *,
        max_num_seqs: int = 32,
        num_blocks: int = 512,
        step_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._max_num_seqs = max_num_seqs
        self._step_s = step_s
        self._sleep = sleep
        self.scheduler = Scheduler(
            BlockManager(num_blocks, 16),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(512, max_num_seqs),
            expected_output_tokens=12.0,
        )
        self._live: dict[str, Sequence] = {}
        self._answers: dict[str, tuple[int, ...]] = {}
        self._started: dict[str, float] = {}
        self._ended_at_add: list[Sequence] = []
        self._num_arrivals = 0

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def max_num_seqs(self) -> int:
        return self._max_num_seqs

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        self._num_arrivals += 1
        seq = Sequence(seq_id, job, self._num_arrivals, resume)
        answer = fake_tokens(job)
        assert answer[: len(resume.token_ids)] == tuple(resume.token_ids), "resumed from elsewhere"
        self._live[seq_id], self._answers[seq_id] = seq, answer
        past_s = resume.times_ms[-1] / 1000 if resume.times_ms else 0.0
        self._started[seq_id] = time.monotonic() - past_s
        if len(resume.token_ids) == len(answer):
            seq.finish_reason = FinishReason.STOP
            self._ended_at_add.append(seq)
        else:
            self.scheduler.add(seq)

    def cancel(self, seq_id: str) -> None:
        if seq_id in self._live:
            seq = self._live[seq_id]
            if seq in self._ended_at_add:
                self._ended_at_add.remove(seq)
            else:
                self.scheduler.finish([seq])
            self._forget(seq)

    def generated(self, seq_id: str) -> Generated:
        seq = self._live[seq_id]
        return Generated(tuple(seq.generated_ids), tuple(seq.times_ms))

    def step(self) -> StepOutput:
        if self._step_s:
            self._sleep(self._step_s)
        ended, self._ended_at_add = self._ended_at_add, []
        plan = self.scheduler.schedule()
        ending = [item.seq for item in plan.scheduled if item.reaches_end]
        positions = [(seq.seq_id, seq.num_generated_tokens) for seq in ending]
        crash_points.at("decoding", tokens=lambda: by_attempt(positions))
        self.scheduler.advance(plan)
        for seq in ending:
            answer = self._answers[seq.seq_id]
            seq.token_ids.append(answer[seq.num_generated_tokens])
            since_s = time.monotonic() - self._started[seq.seq_id]
            seq.times_ms.append(int(since_s * 1000))
            if seq.num_generated_tokens == len(answer):
                seq.finish_reason = FinishReason.STOP
        in_step = [seq for seq in ending if seq.has_ended]
        self.scheduler.finish(in_step)
        return StepOutput(
            finished=[self._finished(seq) for seq in (*ended, *in_step)],
            num_decode_tokens=len(ending),
            num_preempted=plan.num_preempted,
            advanced=[seq.seq_id for seq in ending],
        )

    def _finished(self, seq: Sequence) -> Finished:
        generated = self.generated(seq.seq_id)
        limited = seq.num_generated_tokens == seq.params.max_tokens
        self._forget(seq)
        return Finished(
            seq.seq_id,
            Usage(seq.num_prompt_tokens, seq.num_generated_tokens),
            generated,
            fake_text(generated.token_ids),
            FinishReason.LENGTH if limited else FinishReason.STOP,
        )

    def _forget(self, seq: Sequence) -> None:
        for known in (self._live, self._answers, self._started):
            del known[seq.seq_id]  # type: ignore[attr-defined]
