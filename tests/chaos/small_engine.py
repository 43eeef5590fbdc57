"""An Engine for the small world: drafts, preemption, want of memory, rows that kill its process."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fake_engine import Clock, FakeEngine, fake_text, fake_tokens
from local_run import BYTES
from shaky import Crash

from gristmill.types import Job, RowError
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput

KILLS, FAILS = "!kill", "!fail"


class SmallEngine(FakeEngine):
    """Computes some of its Sequences in each step, up to four tokens of each."""

    def __init__(
        self,
        rng: random.Random,
        clock: Clock,
        *,
        max_num_seqs: int,
        on_token: Callable[[str, int], object],
        on_step: Callable[[], object],
    ) -> None:
        super().__init__(max_num_seqs=max_num_seqs, clock=clock, step_s=rng.choice([0.2, 1.0, 3.0]))
        self._rng = rng
        self._on_token, self._on_step = on_token, on_step
        self.out_of_memory = 0.0

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        answer = fake_tokens(job)
        assert answer[: len(resume.token_ids)] == tuple(resume.token_ids), "resumed from elsewhere"
        super().add(seq_id, job, resume)

    def step(self) -> Any:
        self.clock.advance(self.step_s)
        some = list(self.live)
        if len(some) > self.max_num_seqs:
            some = self._rng.sample(some, self.max_num_seqs)
        self._on_step()
        prompts = {
            seq_id: "".join(BYTES[i] for i in self.live[seq_id].job.prompt_ids) for seq_id in some
        }
        if any(KILLS in prompt for prompt in prompts.values()):
            raise Crash("a row kills its worker")
        if len(self.live) > 1 and self._rng.random() < self.out_of_memory:
            raise MemoryError("A test has taken the memory away.")
        finished, advanced = [], []
        for seq_id in some:
            live = self.live[seq_id]
            if FAILS in prompts[seq_id]:
                error = RowError("too_hard", "The engine cannot compute it.", None, 400)
                finished.append(Finished(seq_id, error=error))
                continue
            for _ in range(self._rng.choice([0, 1, 1, 1, 4])):
                if live.is_done:
                    break
                self._on_token(seq_id, len(live.token_ids))
                live.decode(self.clock())
                advanced.append(seq_id)
            if live.is_done:
                finished.append(self._finished(seq_id, live))
        for end in finished:
            del self.live[end.seq_id]
        return StepOutput(
            finished, num_decode_tokens=len(advanced), num_rows=len(some), advanced=advanced
        )


def answer_to(job: Job) -> str:
    return fake_text(fake_tokens(job))
