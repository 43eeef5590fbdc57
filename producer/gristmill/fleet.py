"""What Workers tell of themselves, and which of them are alike: cards, beats, pools and Lanes.

The seam of the fleet: values and pure functions. A beat travels on the control lane beside Bells
(fleet_wire.py), the control side keeps the newest one of each Worker (ledger/workers.py), and the
Router decides by what is kept. Only the standard library is imported here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from gristmill.types import ModelPin

#: What a model is: revision, hash of the tokenizer, dtype.
ModelKey = tuple[str, str, str]

#: A Worker beats so often, and at each change of its state.
BEAT_EVERY_S = 10.0
#: A Worker that was not heard of for so long is lost: four beats in a row did not arrive.
LOST_AFTER_S = 45.0
#: A Worker that was not heard of for so long is forgotten.
FORGET_AFTER_S = 24 * 3600.0
#: In a list of Lanes to listen to: that of the Worker's own pool, whose name it knows by itself.
OWN_POOL = "pool"
#: Rows up to this many tokens are of one size class, the smallest.
SMALLEST_ROW_CLASS = 1024
#: Upper ends of the classes of prompt length, in tokens, that prefill is measured by. What is
#: longer than the last one belongs to it.
PREFILL_LENGTHS = (128, 512, 2048, 8192, 32768, 131072)


class WorkerState(StrEnum):
    """How a Worker is: it loads its model, takes work, saves what it has, or has ended.

    `lost` is what nobody says of himself: it was not heard of for LOST_AFTER_S.
    """

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"
    LOST = "lost"


class Feature(StrEnum):
    """What a Worker can do for a Job: the kinds of Jobs, and what not every engine has."""

    GENERATE = "generate"
    SCORE = "score"
    EMBED = "embed"
    #: Answers that follow a Grammar.
    GRAMMAR = "grammar"
    #: Log-probabilities of the tokens of an answer.
    LOGPROBS = "logprobs"


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes that only decodes: so many seconds, as many for each row in it, and for
    each token that these rows have in the KV cache."""

    base_s: float
    row_s: float
    context_token_s: float

    def of(self, num_rows: float, num_context_tokens: float) -> float:
        """Seconds."""
        return self.base_s + self.row_s * num_rows + self.context_token_s * num_context_tokens


@dataclass(frozen=True, slots=True)
class WorkerCard:
    """What a Worker is. While it loads, what only the loaded model tells is 0, None or empty.

    `worker_id` is random and new with each start. `memory_bytes` is what the device had free once
    the model was loaded, before the KV cache was taken from it. `kv_tokens` is how many tokens the
    KV cache holds, None for a model that needs none. `max_row_tokens` is the longest row that it
    can run, prompt and answer together, and `window_tokens` what model and settings allow (0: not
    told); while it loads, nobody knows whether its KV cache holds as much. `features` are values
    of Feature, sorted; a newer Worker may name others. `adapters` are its LoRA adapters, each as
    NAME@IDENTITY (adapters.py), `lanes` the Lanes that it listens to, the first one first.

    Speeds are measured from the real steps of the last minutes, and unknown before the first ones:
    `prefill_tokens_per_s` has pairs of a length out of PREFILL_LENGTHS and the prompt tokens per
    second of prompts of that class; `decode_tokens_per_s` is what all its rows together decode. The
    time of a step is shared out by what its tokens take, so that P/prefill + D/decode is the time
    in which a Worker does the like of what it did. Of work that is not alike `step_time` tells.
    `busy_tokens_per_s` is how many tokens of prompts and answers it is done with in a second of
    work, those that the prefix cache had too; it stays as it was while there is nothing to do.
    """

    worker_id: str
    host: str
    model: ModelPin
    #: "cpu", or "cuda" and the name of the GPU: the same on machines that are alike.
    device: str
    max_row_tokens: int
    max_num_seqs: int
    memory_bytes: int = 0
    kv_tokens: int | None = None
    features: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    #: Of Gristmill.
    version: str = ""
    prefill_tokens_per_s: tuple[tuple[int, float], ...] = ()
    decode_tokens_per_s: float | None = None
    step_time: StepTime | None = None
    busy_tokens_per_s: float | None = None
    window_tokens: int = 0

    @property
    def pins(self) -> tuple[ModelPin, ...]:
        """Of all that it runs: its model, and that with each of its adapters."""
        if not self.adapters:
            return (self.model,)
        names = (self.model.name, *(label.rpartition("@")[0] for label in self.adapters))
        revisions = _revisions(self.model.revision, self.adapters)
        return tuple(
            replace(self.model, name=name, revision=revision)
            for name, revision in zip(names, revisions, strict=True)
        )

    def runs(self, model: ModelPin) -> bool:
        """Whether it is what a Shard was made for; what a model is called does not count."""
        return any(replace(pin, name=model.name) == model for pin in self.pins)


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """How a Worker was at `at` (Unix time by its own clock). May be lost, repeated or late.

    It carries the whole card, so that a lost one costs nothing. `seq` goes up with each beat of a
    Worker, and alone says which of two is newer. Numbers beginning at `num_prefill_tokens` count
    since the Worker began, all others are of that moment.
    """

    card: WorkerCard
    seq: int
    state: WorkerState
    at: float
    #: Shards that it has Attempts at, and those that it has read ahead.
    num_shards: int = 0
    num_shards_ahead: int = 0
    #: Rows in its Engine, and rows of its Shards that wait for room there.
    num_rows: int = 0
    num_waiting: int = 0
    kv_used_tokens: int = 0
    #: Prompt and answer tokens computed per second since the beat before.
    tokens_per_s: float = 0.0
    num_prefill_tokens: int = 0
    num_generated_tokens: int = 0
    num_preempted: int = 0
    num_lease_losses: int = 0

    @property
    def worker_id(self) -> str:
        return self.card.worker_id


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A Worker as the Ledger knows it: its newest beat, and when it was heard of (Unix time by the
    clock of the control side, which alone decides whether it is lost)."""

    beat: WorkerBeat
    first_heard_at: float
    heard_at: float

    @property
    def card(self) -> WorkerCard:
        return self.beat.card

    def state_at(self, now: float) -> WorkerState:
        """What it last said, or `lost`."""
        if self.beat.state is not WorkerState.ENDED and now - self.heard_at > LOST_AFTER_S:
            return WorkerState.LOST
        return self.beat.state

    def is_alive_at(self, now: float) -> bool:
        """Whether it loads, works or drains; only one that is `ready` takes new work."""
        return self.state_at(now) not in (WorkerState.ENDED, WorkerState.LOST)


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers of the same abilities on the same kind of device: any of them can run what one of
    them can, and about as fast.

    What a model is called does not count, what it is does, as where a Worker looks whether a Shard
    is for it. `max_row_tokens` is the lower end of the size class: each of them can run rows of so
    many tokens, and one or the other longer ones too (its card says so).
    """

    revision: str
    tokenizer_hash: str
    dtype: str
    max_row_tokens: int
    features: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    device: str = ""

    @property
    def revisions(self) -> tuple[str, ...]:
        """Of all that it runs, as a ModelPin has them: its model, and that with each adapter."""
        return _revisions(self.revision, self.adapters)

    @property
    def model_keys(self) -> tuple[ModelKey, ...]:
        """Of all that it runs, as ModelPin.key."""
        return tuple((revision, self.tokenizer_hash, self.dtype) for revision in self.revisions)

    @property
    def lane(self) -> str:
        """The Lane of this pool: 'pool-8k-' and 16 hex digits; the same on every machine."""
        abilities = (",".join(names) for names in (self.features, self.adapters))
        pin = (self.revision, self.tokenizer_hash, self.dtype)
        text = "\0".join([*pin, str(self.max_row_tokens), *abilities, self.device])
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        return f"pool-{_short(self.max_row_tokens)}-{digest[:16]}"


def _revisions(revision: str, adapters: Iterable[str]) -> tuple[str, ...]:
    return revision, *(f"{revision}+{label.rpartition('@')[2]}" for label in adapters)


def pool_of(card: WorkerCard) -> Pool:
    """The pool of a Worker; not to be asked while it loads, since its abilities are not known."""
    return Pool(
        *card.model.key,
        worker_class(card.max_row_tokens),
        tuple(sorted(card.features)),
        tuple(sorted(card.adapters)),
        card.device,
    )


def lane_of(card: WorkerCard) -> str:
    """The Lane of a Worker's pool, at most 48 of [A-Za-z0-9_-]."""
    return pool_of(card).lane


def worker_class(max_row_tokens: int) -> int:
    """The size class of a Worker: the largest power of two that is not above `max_row_tokens`."""
    return 1 << (max_row_tokens.bit_length() - 1) if max_row_tokens > 0 else 0


def row_class(num_tokens: int) -> int:
    """The size class of a row of so many tokens, prompt and answer: the smallest power of two that
    is not below, and SMALLEST_ROW_CLASS at least. Any Worker of that class or a higher one can run
    it; one of a lower class only if its `max_row_tokens` says so."""
    return max(SMALLEST_ROW_CLASS, 1 << (num_tokens - 1).bit_length() if num_tokens > 0 else 0)


def prefill_length(num_prompt_tokens: int) -> int:
    """The class of a prompt: the first of PREFILL_LENGTHS that is not below it, or the last."""
    return next((n for n in PREFILL_LENGTHS if num_prompt_tokens <= n), PREFILL_LENGTHS[-1])


def _short(num_tokens: int) -> str:
    """8192 as 8k, 1048576 as 1m; small powers of two as they are."""
    for unit, name in ((1 << 20, "m"), (1 << 10, "k")):
        if num_tokens >= unit:
            return f"{num_tokens // unit}{name}"
    return str(num_tokens)
