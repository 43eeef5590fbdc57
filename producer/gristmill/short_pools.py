"""Which pools would run out of work while others still have what those cannot run.

What such a pool can do, the others leave to it as long as they have anything else, so that no
machine stands idle at the end beside one that has hours of work before it. Pure functions, shared
by dispatch and the simulator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gristmill.pools import Fleet, Needs, PoolNow, is_of_model
from gristmill.router import taken_row_tokens

__all__ = ["WaitingKind", "find_short"]


@dataclass(frozen=True, slots=True)
class WaitingKind:
    """Shards that are alike and wait: the needs of one of them, and the expected tokens of all."""

    needs: Needs
    num_tokens: float


@dataclass(frozen=True, slots=True)
class _Work:
    """All Shards of a kind. `seconds` by Lane: what they take on one worker of a pool that can run
    them; None where that was not measured."""

    needs: Needs
    seconds: dict[str, float | None]


def find_short(waiting: Iterable[WaitingKind], fleet: Fleet) -> frozenset[str]:
    """The Lanes of these pools: all that waits and that one can run is done there, without help,
    sooner than all other pools together have done what it cannot.

    One of which something was not measured is none of them.
    """
    kinds = [_work_of(kind, fleet) for kind in waiting]
    return frozenset(
        pool.lane
        for pool in fleet.pools
        if (own_s := _alone_s(pool, kinds)) is not None and own_s < _rest_s(pool, kinds, fleet)
    )


def _work_of(kind: WaitingKind, fleet: Fleet) -> _Work:
    needs = kind.needs
    row_tokens = taken_row_tokens(needs, fleet)
    num_shards = kind.num_tokens / max(needs.num_expected_tokens, 1)
    found: dict[str, float | None] = {}
    for pool in fleet.pools:
        if pool.can_run(needs, row_tokens):
            time_s = pool.time_s(needs)
            found[pool.lane] = None if time_s is None else time_s * num_shards
    return _Work(needs, found)


def _alone_s(pool: PoolNow, kinds: list[_Work]) -> float | None:
    """Until a pool has done all that it can run; None if that is not known."""
    total = 0.0
    for kind in kinds:
        if pool.lane in kind.seconds:
            seconds = kind.seconds[pool.lane]
            if seconds is None:
                return None
            total += seconds
    return total / pool.num_workers


def _rest_s(pool: PoolNow, kinds: list[_Work], fleet: Fleet) -> float:
    """Until the other pools of its model have together done what it cannot run."""
    total = 0.0
    for kind in kinds:
        if pool.lane not in kind.seconds and is_of_model(pool.pool, kind.needs.model):
            per_s = sum(
                other.num_workers / seconds
                for other in fleet.pools
                if (seconds := kind.seconds.get(other.lane))
            )
            total += 1 / per_s if per_s else 0.0
    return total
