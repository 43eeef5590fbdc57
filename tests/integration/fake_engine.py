"""An engine without a model: answers follow from the prompt, at a pace that tests choose."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gristmill.types import (
    FinishReason,
    Job,
    RowError,
    TokenLogprob,
    Usage,
)
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput


@dataclass
class Clock:
    """Wall and monotonic time at once; moves only when told."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def fake_tokens(job: Job) -> tuple[int, ...]:
    """The answer to a Job: a pure function of its prompt and limits."""
    digest = hashlib.sha256(repr((job.prompt_ids, job.params.seed)).encode()).digest()
    num_tokens = min(job.params.max_tokens, 1 + digest[0] % 24)
    return tuple(
        int.from_bytes(hashlib.sha256(digest + i.to_bytes(4, "big")).digest()[:2], "big")
        for i in range(num_tokens)
    )


def fake_text(token_ids: Iterable[int]) -> str:
    return " ".join(map(str, token_ids))


@dataclass
class _Live:
    job: Job
    answer: tuple[int, ...]
    started: float
    token_ids: list[int]
    times_ms: list[int]

    @property
    def is_done(self) -> bool:
        return len(self.token_ids) == len(self.answer)

    def decode(self, now: float) -> None:
        """The next token of its answer, which is not done."""
        self.token_ids.append(self.answer[len(self.token_ids)])
        self.times_ms.append(int((now - self.started) * 1000))

    def generated(self) -> Generated:
        asks = self.job.params.logprobs is not None
        logprobs = [TokenLogprob(-token_id / 2**17) for token_id in self.token_ids if asks]
        return Generated(tuple(self.token_ids), tuple(self.times_ms), tuple(logprobs))

    def text_offsets(self) -> tuple[int, ...]:
        return tuple(len(fake_text(self.token_ids[:i])) for i in range(len(self.token_ids)))


class FakeEngine:
    """Decodes one token a step of each of the first `max_num_seqs` Sequences.

    `on_decode(prompt_ids, position)` hears of each token. A prompt that begins with BAD is an
    error of that row; one that begins with POISON raises out of `step`.
    """

    BAD = 666
    POISON = 999

    def __init__(
        self,
        *,
        max_num_seqs: int = 4,
        clock: Clock | None = None,
        step_s: float = 0.0,
        on_decode: Callable[[tuple[int, ...], int], None] | None = None,
    ) -> None:
        self._max_num_seqs = max_num_seqs
        self.clock = clock or Clock()
        self.step_s = step_s
        self.live: dict[str, _Live] = {}
        #: While set, time goes by and nothing is decoded.
        self.paused = False
        #: So many answers on, or a few more, it is paused.
        self.pauses_after: int | None = None
        self._counting = threading.Lock()
        self.decoded: list[tuple[tuple[int, ...], int]] = []
        self._on_decode = on_decode or (lambda prompt, i: self.decoded.append((prompt, i)))

    @property
    def num_live(self) -> int:
        return len(self.live)

    @property
    def max_num_seqs(self) -> int:
        return self._max_num_seqs

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        assert seq_id not in self.live
        past_s = resume.times_ms[-1] / 1000 if resume.times_ms else 0
        self.live[seq_id] = _Live(
            job,
            fake_tokens(job),
            self.clock() - past_s,
            list(resume.token_ids),
            list(resume.times_ms),
        )

    def cancel(self, seq_id: str) -> None:
        self.live.pop(seq_id, None)

    def generated(self, seq_id: str) -> Generated:
        return self.live[seq_id].generated()

    def resume(self) -> None:
        """From now on there is no pause, nor one to come."""
        with self._counting:
            self.paused, self.pauses_after = False, None

    def step(self) -> StepOutput:
        self.clock.advance(self.step_s)
        finished, advanced = [], []
        if self.paused:
            return StepOutput()
        for seq_id, live in list(self.live.items())[: self._max_num_seqs]:
            if live.job.prompt_ids[0] == self.POISON:
                raise RuntimeError("the engine broke")
            if live.job.prompt_ids[0] == self.BAD:
                error = RowError("context_length_exceeded", "Too long.", "messages", 400)
                finished.append(Finished(seq_id, error=error))
            else:
                if not live.is_done:
                    self._on_decode(live.job.prompt_ids, len(live.token_ids))
                    live.decode(self.clock())
                    advanced.append(seq_id)
                if live.is_done:
                    finished.append(self._finished(seq_id, live))
        for end in finished:
            del self.live[end.seq_id]
        with self._counting:
            if self.pauses_after is not None:
                self.pauses_after -= len(finished)
                if self.pauses_after <= 0:
                    self.paused, self.pauses_after = True, None
        return StepOutput(finished, num_decode_tokens=len(advanced), advanced=advanced)

    def _finished(self, seq_id: str, live: _Live) -> Finished:
        limited = len(live.answer) == live.job.params.max_tokens
        return Finished(
            seq_id,
            Usage(len(live.job.prompt_ids), len(live.token_ids)),
            live.generated(),
            fake_text(live.token_ids),
            FinishReason.LENGTH if limited else FinishReason.STOP,
            text_offsets=live.text_offsets(),
            token_bytes={i: b" %d" % i for i in live.token_ids},
        )


# ---------------------------------------------------------------------------- batches
