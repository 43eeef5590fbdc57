"""The contract that control side and workers share: the nouns, nothing but values.

Only the standard library is imported here, so that an engine machine needs nothing else of ours.
Everything but Histogram is immutable. `wire.py` says how these values are stored and sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: The lane on which Bells travel from workers to the control side.
CONTROL_LANE = "control"


class JobKind(StrEnum):
    GENERATE = "generate"


class Endpoint(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class FinishReason(StrEnum):
    """Why a row stopped: `stop` (end token or stop string) or `length` (a token limit)."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens. The defaults are the API's neutral ones, never the model folder's.

    `temperature` 0 is greedy. `top_k` 0 and `min_p` 0 are off. `seed` is the row's own seed
    (64 bits); it is 0 for greedy rows, whose result does not depend on it. The first `min_tokens`
    tokens never end the row. `stop_token_ids` end it as the model's end tokens do.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        penalties = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the input: its place among the non-blank lines (from 0), and its name."""

    idx: int
    custom_id: str


@dataclass(frozen=True, slots=True)
class Job:
    """A Request made ready for an engine. Several rows when they must get the same answer."""

    rows: tuple[Row, ...]
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    kind: JobKind = JobKind.GENERATE


@dataclass(frozen=True, slots=True)
class ModelPin:
    """What a Shard was made for. A worker that holds anything else gives the Shard back."""

    name: str
    revision: str
    tokenizer_hash: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Shard:
    """Jobs of one Batch that travel together: the unit of queueing and lease. Job j is jobs[j]."""

    tenant_id: str
    batch_id: str
    run_id: str
    n: int
    endpoint: Endpoint
    model: ModelPin
    jobs: tuple[Job, ...]

    @property
    def pointer(self) -> ShardPointer:
        tokens = sum(len(job.prompt_ids) for job in self.jobs)
        return ShardPointer(
            self.tenant_id, self.batch_id, self.run_id, self.n, len(self.jobs), tokens
        )


@dataclass(frozen=True, slots=True)
class ShardPointer:
    """What a queue message holds: where the Shard lies and how large it is. Never data."""

    tenant_id: str
    batch_id: str
    run_id: str
    n: int
    num_jobs: int
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Bell:
    """Worker to control: this Attempt has stored its Segment number `seq`. May be lost."""

    tenant_id: str
    batch_id: str
    run_id: str
    shard_n: int
    attempt_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one row. `cached_tokens` of the prompt were found in the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    def times(self, count: int) -> Usage:
        return Usage(
            self.prompt_tokens * count, self.completion_tokens * count, self.cached_tokens * count
        )


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no answer. With `status_code` it is an HTTP-like refusal, else never run."""

    code: str
    message: str
    param: str | None = None
    status_code: int | None = None
    type: str = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class RowResult:
    """The answer to one Job, and so to each of its rows.

    `text` is the exact decode of `token_ids` up to the stop. `ttft_s` runs from the Job's entry
    into the engine to its first token, `itl_s` is the mean time between its tokens.
    """

    job_idx: int
    rows: tuple[Row, ...]
    usage: Usage = Usage()
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    error: RowError | None = None
    finished_at: int = 0
    ttft_s: float = 0.0
    itl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tokens `start` and following of a Job that still runs; a delta to the one before it.

    `times_ms` (one per token) count from the Job's entry into the engine. The first Checkpoint
    that an Attempt writes of a Job starts at 0, so that every Attempt can be read by itself.
    """

    job_idx: int
    start: int
    token_ids: tuple[int, ...]
    times_ms: tuple[int, ...]


class Histogram:
    """Counts of durations in buckets that grow by a tenth, so a quantile is within 5 %.

    Unlike a list of values it has a bounded size and can be merged: rows into Segments, Segments
    into Batches.
    """

    _SMALLEST_S = 1e-5
    _LOG_GROWTH = math.log(1.1)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def add(self, seconds: float) -> None:
        ratio = max(seconds, self._SMALLEST_S) / self._SMALLEST_S
        bucket = int(math.log(ratio) / self._LOG_GROWTH)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: Histogram) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def quantile(self, q: float) -> float | None:
        """The q-quantile in seconds (0 <= q <= 1), or None when nothing was counted."""
        total = sum(self.counts.values())
        if not total:
            return None
        remaining = math.ceil(q * total) or 1
        for bucket in sorted(self.counts):
            remaining -= self.counts[bucket]
            if remaining <= 0:
                return self._SMALLEST_S * math.exp((bucket + 0.5) * self._LOG_GROWTH)
        raise AssertionError("the counts of a histogram add up to its total")

    def to_wire(self) -> dict[str, int]:
        return {str(bucket): count for bucket, count in sorted(self.counts.items())}

    @classmethod
    def from_wire(cls, wire: Mapping[str, int]) -> Histogram:
        return cls({int(bucket): count for bucket, count in wire.items()})


@dataclass(frozen=True, slots=True)
class Segment:
    """What one Attempt wrote at once: rows finished since its last Segment, rows under way."""

    tenant_id: str
    batch_id: str
    run_id: str
    shard_n: int
    attempt_id: str
    seq: int
    results: tuple[RowResult, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
