"""What a Worker needs of an engine: add, cancel, step. Our own Engine and the backends have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gristmill.types import FinishReason, Job, RowError, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens of one Sequence so far, and for each the milliseconds since `Engine.add`.

    `logprobs` has one entry for each of them where the Job asks for log-probabilities. Given to
    `add`, it resumes what an earlier Attempt had decoded: those tokens are prefilled, never decoded
    again, and what is known of them is kept (the clock goes on from the last of them).
    """

    token_ids: Sequence[int] = ()
    times_ms: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] = ()


#: What a Job that starts from its prompt has generated.
NOTHING = Generated()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one Sequence: an answer, or `error` (then the rest is empty).

    `text_offsets`, `token_bytes`, `scored` and `embedding` as in types.Choice, for Jobs that ask
    for log-probabilities or vectors. `queue_s` and `prefill_s` as in types.Times.
    """

    seq_id: str
    usage: Usage = field(default_factory=Usage)
    generated: Generated = field(default_factory=Generated)
    text: str = ""
    finish_reason: FinishReason | None = None
    text_offsets: Sequence[int] = ()
    token_bytes: Mapping[int, bytes] = field(default_factory=dict)
    scored: Sequence[TokenLogprob] = ()
    embedding: Sequence[float] = ()
    error: RowError | None = None
    queue_s: float = 0.0
    prefill_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step did. A Sequence is in `finished` exactly once, unless it is cancelled.

    `num_rows` of them the step computed. Behind it, `num_running` have a place in the KV cache, of
    which they fill `kv_used_tokens`, and `num_waiting` have none.
    """

    finished: Sequence[Finished] = ()
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_preempted: int = 0
    num_rows: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_used_tokens: int = 0
    #: The Sequences that got new tokens in this step, once for each token.
    advanced: Sequence[str] = field(default=())


class Engine(Protocol):
    """One thread calls all methods. `seq_id` is the caller's and unique among live Sequences."""

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        """Queue a Job of one prompt and one Choice.

        A Job that can never fit comes back as `Finished.error` of the next step.
        """

    def cancel(self, seq_id: str) -> None:
        """Forget a Sequence; nothing more is heard of it. Unknown ids are ignored."""

    def step(self) -> StepOutput:
        """One iteration of continuous batching. Cheap when there is nothing to do."""

    def generated(self, seq_id: str) -> Generated:
        """A snapshot of a live Sequence, for a checkpoint. Raises KeyError when unknown."""

    @property
    def num_live(self) -> int:
        """Sequences added and neither finished nor cancelled."""

    @property
    def max_num_seqs(self) -> int:
        """Most Sequences that one step computes; a Worker keeps about twice as many live."""
