"""What a Shard is expected to take on each pool, and what lies ahead of it there.

Pure functions of the Router (router.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gristmill.pools import Fleet, Needs, PoolNow, is_of_model
from gristmill.queues.base import BULK_LANE

#: Tokens per second of a worker while nothing was measured of any that can run the Shard.
_NOMINAL_TOKENS_PER_S = 100.0


@dataclass(frozen=True, slots=True)
class Load:
    """What lies ahead of a Shard, in expected tokens.

    `sent_tokens` by Lane: sent, and not answered yet. `waiting_tokens`: those of the same model
    that were not sent. `full`: Lanes that nothing more is sent to just now. `short`: those of pools
    that will run out of work before the others (short_pools.py).
    """

    sent_tokens: Mapping[str, float] = field(default_factory=dict)
    waiting_tokens: float = 0.0
    full: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()


class ExpectedWork:
    """Of one Shard, in seconds."""

    def __init__(self, needs: Needs, fleet: Fleet, load: Load) -> None:
        self._load = load
        self.listeners = [pool for pool in fleet.pools if pool.takes_bulk]
        found = {p.lane: p.time_s(needs) for p in fleet.pools if is_of_model(p.pool, needs.model)}
        #: Whether the model has machines of several kinds.
        self.is_mixed = len(found) > 1
        num_tokens = max(needs.num_expected_tokens, 1)
        nominal_s = num_tokens / _NOMINAL_TOKENS_PER_S
        measured = [t for t in found.values() if t is not None] or [nominal_s]
        #: On the fastest pool.
        self.least_time_s = min(measured)
        #: A pool that was not measured counts as the fastest until there is about a Shard for each
        #: of its workers to be measured by, and then as the slowest: more may wait there for long.
        self._time_s = {
            p.lane: t
            if (t := found.get(p.lane)) is not None
            else self.least_time_s
            if load.sent_tokens.get(p.lane, 0.0) < p.num_workers * num_tokens
            else max(measured)
            for p in fleet.pools
        }
        #: Tokens per second of all workers of a pool at work of this kind; never 0.
        self._rate = {
            p.lane: p.num_workers * num_tokens / max(self._time_s[p.lane], 1e-9)
            for p in fleet.pools
        }
        in_bulk = load.sent_tokens.get(BULK_LANE, 0.0)
        #: What listeners still have to do of the mixed Lane, which is the same for all Lanes.
        self.bulk_wait_s = in_bulk / (sum(self._rate[p.lane] for p in self.listeners) or 1.0)
        of_model = sum(self._rate[lane] for lane in found)
        #: Until all that waits has been sent: then it would be the Shard's turn.
        self._turn_s = load.waiting_tokens / (of_model or 1.0)

    def finish_s(self, pool: PoolNow) -> float:
        """On the Lane of a pool, apart from `bulk_wait_s`."""
        return self._ahead_s(pool) + self._wait_s(pool.lane) + self._time_s[pool.lane]

    def finish_of_bulk_s(self) -> float:
        """On the mixed Lane, where the first that is free takes it, who may be the slowest.

        Apart from `bulk_wait_s`. While its window is full nobody who listens there is idle, so that
        nothing is won by going past it.
        """
        ahead_s = min(self._ahead_s(pool) for pool in self.listeners)
        slowest_s = max(self._time_s[pool.lane] for pool in self.listeners)
        return ahead_s + slowest_s

    def _ahead_s(self, pool: PoolNow) -> float:
        return self._load.sent_tokens.get(pool.lane, 0.0) / self._rate[pool.lane]

    def _wait_s(self, lane: str) -> float:
        return self._turn_s if lane in self._load.full else 0.0
