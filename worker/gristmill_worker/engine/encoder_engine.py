"""The Engine for models that read whole prompts and only make vectors. See base.Engine.

A step takes whole prompts, as many as its tokens allow, packed without padding. Nothing is kept
from step to step, so there is no cache, and nothing to resume.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gristmill.types import FinishReason, Job, JobKind, RowError, Usage
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput
from gristmill_worker.engine.pooling import NOT_FINITE, Pooler
from gristmill_worker.models.encoder import LoadedEncoder


@dataclass(slots=True)
class _Waiting:
    seq_id: str
    job: Job
    added_s: float


class EncoderEngine:
    """A prompt that is longer than `max_num_batched_tokens` has a step of its own."""

    def __init__(
        self,
        loaded: LoadedEncoder,
        *,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_model_len = loaded.max_model_len
        self._loaded = loaded
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._refused: list[Finished] = []

    @property
    def num_live(self) -> int:
        return len(self._waiting) + len(self._refused)

    @property
    def max_num_seqs(self) -> int:
        return self._max_num_seqs

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        error = self._refusal(job)
        if error is not None:
            self._refused.append(Finished(seq_id, error=error))
        else:
            self._waiting.append(_Waiting(seq_id, job, self._clock()))

    def cancel(self, seq_id: str) -> None:
        self._waiting = deque(one for one in self._waiting if one.seq_id != seq_id)
        self._refused = [one for one in self._refused if one.seq_id != seq_id]

    def generated(self, seq_id: str) -> Generated:
        live = {one.seq_id for one in self._waiting} | {one.seq_id for one in self._refused}
        if seq_id in live:
            return NOTHING
        raise KeyError(seq_id)

    def step(self) -> StepOutput:
        finished: list[Finished] = self._refused
        self._refused = []
        began_s = self._clock()
        taken = self._take()
        if not taken:
            return StepOutput(finished)
        prompts = [one.job.prompt_ids for one in taken]
        lengths = [len(prompt) for prompt in prompts]
        states = torch.split(self._loaded.hidden_states(prompts), lengths)
        ended_s = self._clock()
        for one, of_prompt in zip(taken, states, strict=True):
            assert one.job.embedding is not None, "refused by add"
            pooler = Pooler(one.job.embedding)
            pooler.take(of_prompt, begin=0)
            vector = pooler.vector(len(one.job.prompt_ids))
            finished.append(
                Finished(one.seq_id, error=NOT_FINITE)
                if vector is None
                else Finished(
                    one.seq_id,
                    usage=Usage(prompt_tokens=len(one.job.prompt_ids)),
                    finish_reason=FinishReason.LENGTH,
                    embedding=vector,
                    queue_s=began_s - one.added_s,
                    prefill_s=ended_s - began_s,
                )
            )
        return StepOutput(
            finished,
            num_prefill_tokens=sum(lengths),
            num_rows=len(taken),
            num_waiting=len(self._waiting),
        )

    def _take(self) -> list[_Waiting]:
        """The prompts of the next step, in the order of their arrival; at least one if any."""
        taken: list[_Waiting] = []
        num_tokens = 0
        while self._waiting and len(taken) < self._max_num_seqs:
            num_tokens += len(self._waiting[0].job.prompt_ids)
            if taken and num_tokens > self._max_num_batched_tokens:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _refusal(self, job: Job) -> RowError | None:
        """What ingest lets through and this model cannot do."""
        num_tokens = len(job.prompt_ids)
        if job.kind is not JobKind.EMBED:
            return RowError(
                "unsupported_model", "This model only makes vectors: use /v1/embeddings.", None, 400
            )
        if not num_tokens:
            return RowError("invalid_request", "The input has no tokens.", "input", 400)
        if num_tokens > self.max_model_len:
            return RowError(
                "context_length_exceeded",
                f"The input has {num_tokens} tokens, and this model reads {self.max_model_len}. "
                "Shorten it, or set `truncate_prompt_tokens`.",
                "input",
                400,
            )
        return None
