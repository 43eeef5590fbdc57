"""The fleet as the Router sees it: pools of workers that are alike, and what a Shard needs of one.

Values and pure functions, made of what the Ledger knows of each Worker (fleet.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from gristmill.fleet import (
    PREFILL_LENGTHS,
    KnownWorker,
    Pool,
    StepTime,
    WorkerCard,
    WorkerState,
    pool_of,
    prefill_length,
)
from gristmill.loading import Loading, LoadingWorkers, has_loaded
from gristmill.queues.base import BULK_LANE
from gristmill.types import ModelPin


@dataclass(frozen=True, slots=True)
class Needs:
    """What a Shard, or a row, needs of a machine. 0 tokens: not known, fits everywhere.

    `max_row_tokens` is its longest row, prompt and all of the answer that it may have;
    `least_row_tokens` what cannot be cut: the longest prompt, with one token of answer if any.
    `num_expected_tokens` counts the prompts and the answers that are expected.
    """

    model: ModelPin
    max_row_tokens: int = 0
    least_row_tokens: int = 0
    features: frozenset[str] = frozenset()
    num_jobs: int = 1
    num_prompt_tokens: int = 0
    num_expected_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PoolNow:
    """The workers of a pool that take work now. Speeds are those of one worker, on the mean of
    those that were measured. Each takes rows of `min_row_tokens`, some of `max_row_tokens`."""

    pool: Pool
    num_workers: int
    min_row_tokens: int
    max_row_tokens: int
    #: Whether anybody listens to BULK_LANE, and to the pool's own.
    takes_bulk: bool = True
    takes_own: bool = True
    #: (length out of PREFILL_LENGTHS, prompt tokens per second), the shortest first.
    prefill_tokens_per_s: tuple[tuple[int, float], ...] = ()
    step_time: StepTime | None = None
    #: Rows that run at once on one worker at most, and tokens of its KV cache; inf: no limit.
    max_num_seqs: float = float("inf")
    kv_tokens: float = float("inf")
    #: That of the pool.
    lane: str = ""

    def can_run(self, needs: Needs, row_tokens: int) -> bool:
        """Whether each of its workers can."""
        return is_able(self.pool, needs) and self.min_row_tokens >= row_tokens

    def time_s(self, needs: Needs) -> float | None:
        """What the Shard takes on one worker that is busy with as many of its like as run there at
        once; None if that was not measured."""
        num_jobs = max(needs.num_jobs, 1)
        num_answer_tokens = max(needs.num_expected_tokens - needs.num_prompt_tokens, 0)
        prompt = needs.num_prompt_tokens / num_jobs
        prefill = self._prefill_at(prompt)
        if (needs.num_prompt_tokens and not prefill) or (num_answer_tokens and not self.step_time):
            return None
        seconds = needs.num_prompt_tokens / prefill if prefill else 0.0
        if self.step_time and num_answer_tokens:
            # Each of them has half of its answer, on the mean.
            answer = num_answer_tokens / num_jobs
            num_rows = max(min(self.max_num_seqs, self.kv_tokens / (prompt + answer)), 1.0)
            step_s = self.step_time.of(num_rows, num_rows * (prompt + answer / 2))
            seconds += num_answer_tokens / num_rows * step_s
        return seconds

    def _prefill_at(self, num_tokens: float) -> float | None:
        """At the class of this length, or the nearest one that was measured."""
        wanted = PREFILL_LENGTHS.index(prefill_length(round(num_tokens)))
        measured = [
            (abs(PREFILL_LENGTHS.index(prefill_length(length)) - wanted), length, rate)
            for length, rate in self.prefill_tokens_per_s
        ]
        return min(measured)[2] if measured else None


@dataclass(frozen=True, slots=True)
class KnownPool:
    """Workers of a pool that were heard of within a day, alive or not."""

    pool: Pool
    max_row_tokens: int
    heard_at: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """`pools` has who takes work now, `loading` who will. `max_row_tokens` is what a machine takes
    at most by the operator's word, whether one is there or not; 0 if he says nothing."""

    pools: tuple[PoolNow, ...] = ()
    known: tuple[KnownPool, ...] = ()
    loading: tuple[Loading, ...] = ()
    max_row_tokens: int = 0

    @property
    def lanes(self) -> tuple[str, ...]:
        """Where work may be sent now; only the mixed Lane while all are alike, or nobody is."""
        if len(self.pools) <= 1 and all(p.takes_bulk for p in self.pools):
            # Some of its workers may take longer rows than others.
            uneven = (
                p.lane for p in self.pools if p.takes_own and p.min_row_tokens != p.max_row_tokens
            )
            return BULK_LANE, *uneven
        return BULK_LANE, *(pool.lane for pool in self.pools if pool.takes_own)

    def num_listeners(self, lane: str) -> int:
        """Workers that take work from it."""
        if lane == BULK_LANE:
            return sum(pool.num_workers for pool in self.pools if pool.takes_bulk)
        return sum(pool.num_workers for pool in self.pools if pool.lane == lane)

    @property
    def num_workers(self) -> int:
        return sum(pool.num_workers for pool in self.pools)


def fleet_of(workers: Iterable[KnownWorker], now: float) -> Fleet:
    """The pools of these workers, in the order of their Lanes."""
    ready: dict[Pool, list[WorkerCard]] = {}
    known: dict[Pool, tuple[int, float]] = {}
    loading = LoadingWorkers(now)
    for worker in workers:
        loading.add(worker)
        if not has_loaded(worker):
            continue
        card = worker.card
        pool = pool_of(card)
        most, heard_at = known.get(pool, (0, 0.0))
        known[pool] = max(most, card.max_row_tokens), max(heard_at, worker.heard_at)
        if worker.state_at(now) is WorkerState.READY:
            ready.setdefault(pool, []).append(card)
    return Fleet(
        tuple(sorted((_pool_now(*item) for item in ready.items()), key=lambda p: p.lane)),
        tuple(KnownPool(pool, *known[pool]) for pool in sorted(known, key=lambda p: p.lane)),
        tuple(loading.find()),
    )


def _pool_now(pool: Pool, cards: list[WorkerCard]) -> PoolNow:
    limits = [card.max_row_tokens for card in cards]
    rates: dict[int, list[float]] = {}
    for card in cards:
        for length, rate in card.prefill_tokens_per_s:
            rates.setdefault(length, []).append(rate)
    lane = pool.lane
    return PoolNow(
        pool,
        len(cards),
        min(limits),
        max(limits),
        takes_bulk=any(not card.lanes or BULK_LANE in card.lanes for card in cards),
        takes_own=any(not card.lanes or lane in card.lanes for card in cards),
        prefill_tokens_per_s=tuple((length, fmean(rates[length])) for length in sorted(rates)),
        step_time=_mean_step_time(cards),
        max_num_seqs=fmean(card.max_num_seqs for card in cards),
        kv_tokens=fmean(float("inf") if c.kv_tokens is None else c.kv_tokens for c in cards),
        lane=lane,
    )


def _mean_step_time(cards: Iterable[WorkerCard]) -> StepTime | None:
    """Of those that have measured theirs."""
    found = [time for card in cards if (time := _step_time(card)) is not None]
    if not found:
        return None
    return StepTime(
        fmean(time.base_s for time in found),
        fmean(time.row_s for time in found),
        fmean(time.context_token_s for time in found),
    )


def _step_time(card: WorkerCard) -> StepTime | None:
    """As the card tells; that of an earlier version knows its latest speed alone."""
    if card.step_time is not None or not card.decode_tokens_per_s:
        return card.step_time
    return StepTime(0.0, 1 / card.decode_tokens_per_s, 0.0)


def is_of_model(pool: Pool | ModelPin, model: ModelPin) -> bool:
    """What a model is called does not count, what it is does. A worker that loads, of which the
    pin alone is known, may have any adapter."""
    if (pool.tokenizer_hash, pool.dtype) != (model.tokenizer_hash, model.dtype):
        return False
    if pool.revision == model.revision:
        return True
    if isinstance(pool, ModelPin):
        return pool.revision == model.base_revision
    return bool(model.adapter) and model.revision in pool.revisions


def is_able(pool: Pool, needs: Needs) -> bool:
    """Whether it has the model and the features; one that names no features has them all."""
    return is_of_model(pool, needs.model) and (
        not pool.features or needs.features <= set(pool.features)
    )
