"""Which Shard of a batch goes next, and to which Lane: what the Router says, within the windows.

Of the size classes of a batch, the one that the Router ranks lowest goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

from sqlalchemy import Connection

from gristmill.control.fleet_view import Kinds
from gristmill.fleet import ModelKey
from gristmill.ledger import shards, size_classes
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.ledger.size_classes import Kind, SizeClass
from gristmill.ledger.turns import Only, UnderWay
from gristmill.loading import NO_LIMIT
from gristmill.needs import features_in, least_in
from gristmill.router import Fleet, Load, Needs, Rank, Route, ToLane, find_limits, route
from gristmill.short_pools import WaitingKind, find_short
from gristmill.types import ModelPin

#: Shards of a class that are looked at beyond those that fill the windows: some wait for a machine.
_MORE_SHARDS = 16
#: Shards of a class that one round reads at most, and those.
_MAX_SHARDS = 256


def needs_of_shard(model: ModelPin, shard: ShardRow) -> Needs:
    """As the Router wants to know it, from what the Ledger knows."""
    return Needs(
        model,
        max_row_tokens=shard.max_row_tokens,
        least_row_tokens=shard.least_row_tokens,
        features=features_in(shard.size_class),
        num_jobs=shard.num_jobs,
        num_prompt_tokens=shard.num_prompt_tokens,
        num_expected_tokens=shard.num_expected_tokens,
    )


def _waiting_of(kind: Kind) -> WaitingKind:
    return WaitingKind(
        _needs_of_kind(kind, kind.max_row_tokens, kind.least_row_tokens), kind.num_waiting_tokens
    )


def _needs_of_kind(kind: Kind, max_row_tokens: int, least_row_tokens: int) -> Needs:
    """Of a Shard of that kind, with such rows."""
    return Needs(
        kind.model,
        max_row_tokens,
        least_row_tokens,
        features_in(kind.size_class),
        num_jobs=kind.num_jobs,
        num_prompt_tokens=kind.num_prompt_tokens,
        num_expected_tokens=kind.num_expected_tokens,
    )


def models_alive(fleet: Fleet) -> Only | None:
    """What anybody takes work of now; None, which is all, while nobody does or has said so."""
    found = frozenset(key for p in fleet.pools for key in p.pool.model_keys)
    return Only(found) if found else None


class Routes:
    """One round of dispatch. `room` has how many more Shards each Lane takes.

    What lies ahead is `under_way`, and `left`, which counts by model what was sent and what was
    not; without it nothing is weighed. `kinds` is all that waits, where there are several Lanes.
    """

    def __init__(
        self,
        conn: Connection,
        fleet: Fleet,
        room: Mapping[str, int],
        now: float,
        *,
        under_way: Collection[UnderWay],
        left: Mapping[ModelKey, int],
        kinds: Kinds,
    ) -> None:
        self.conn = conn
        self.fleet = fleet
        self.room = dict(room)
        self._now = now
        self._kinds = kinds
        self._short = find_short(map(_waiting_of, kinds), fleet)
        self._waiting: dict[ModelKey, float] = dict(left)
        self._sent: dict[str, float] = {}
        for one in under_way:
            self._sent[one.lane] = self._sent.get(one.lane, 0.0) + one.num_tokens
            self._count_out(one.model, one.num_tokens)

    @property
    def is_mixed(self) -> bool:
        """Whether there is more than one Lane."""
        return len(self.room) > 1

    def find_for(self, lane: str) -> Only | None:
        """What of all that waits would be sent to a Lane now, as far as its size classes tell.

        So that nobody looks through many batches for what is best elsewhere. None is all.
        """
        if not self.is_mixed:
            return models_alive(self.fleet)
        models: set[ModelKey] = set()
        classes: set[str] = set()
        for kind in self._kinds if self.room[lane] > 0 else ():
            if lane in self._lanes_of(kind):
                models.add(kind.model.key)
                classes.add(kind.size_class)
        return Only(frozenset(models), frozenset(classes))

    def _lanes_of(self, kind: Kind) -> Iterator[str]:
        """Where Shards of a kind would go, whatever their rows need within it."""
        # Prompts of others that no machine can take keep no shorter ones waiting.
        shortest = least_in(kind.size_class)
        rows = (kind.min_row_tokens, kind.max_row_tokens, *self._steps_in(kind))
        asked = {
            (row, min(least, row)) for row in rows for least in (shortest, kind.least_row_tokens)
        }
        for row_tokens, least in sorted(asked):
            needs = _needs_of_kind(kind, row_tokens, least)
            to = route(needs, self.fleet, self._load(kind.model), now=self._now)
            if isinstance(to, ToLane):
                yield to.lane

    def _steps_in(self, kind: Kind) -> Iterator[int]:
        """Lengths between the shortest and the longest rows at which others can run them."""
        for pool in self.fleet.pools:
            for limit in {pool.min_row_tokens, pool.max_row_tokens}:
                if kind.min_row_tokens < limit < kind.max_row_tokens:
                    yield from (limit, limit + 1)

    def next_of(
        self, batch: Batch, lane: str, only: Only | None, *, most: int = NO_LIMIT
    ) -> Iterator[tuple[ShardRow, ToLane]]:
        """Shard by Shard, as long as there is one that this Lane is best for, and room there; none
        with rows of more tokens than `most`."""
        heads = self._heads(batch, lane, only, most)
        while True:
            best: tuple[tuple[Rank, int], deque[ShardRow], ToLane] | None = None
            for head in heads:
                to = self._route_first(batch, head)
                if to is not None and to.lane == lane and self.room[lane] > 0:
                    order = (to.rank, head[0].n)
                    if best is None or order < best[0]:
                        best = order, head, to
            if best is None:
                return
            yield best[1].popleft(), best[2]

    def take(self, batch: Batch, shard: ShardRow, lane: str) -> None:
        """A Shard was sent."""
        self.room[lane] -= 1
        num_tokens = shard.num_expected_tokens
        self._sent[lane] = self._sent.get(lane, 0.0) + num_tokens
        self._count_out(batch.model.key, num_tokens)

    def _count_out(self, key: ModelKey, num_tokens: float) -> None:
        if key in self._waiting:
            self._waiting[key] = max(self._waiting[key] - num_tokens, 0.0)

    def _heads(
        self, batch: Batch, lane: str, only: Only | None, most: int
    ) -> list[deque[ShardRow]]:
        """The next Shards of each size class that may go to a Lane.

        Those that no machine can run now keep none waiting behind them.
        """
        of_batch = size_classes.list_of_batch(self.conn, batch.tenant_id, batch.id)
        found = [one for one in of_batch if one.min_row_tokens <= most]
        if len(of_batch) <= 1:  # a batch that an earlier version reads meanwhile has none
            if len(found) < len(of_batch):
                return []
            limits = self._limits(batch.model, found[0], most) if found else None
            return [self._read(batch, lane, None, limits)]
        classes = None if only is None else only.classes
        return [
            self._read(batch, lane, one.size_class, self._limits(batch.model, one, most))
            for one in found
            if classes is None or one.size_class in classes
        ]

    def _read(
        self, batch: Batch, lane: str, name: str | None, limits: tuple[int, int] | None
    ) -> deque[ShardRow]:
        limit = min(self.room[lane], _MAX_SHARDS) + _MORE_SHARDS
        of_batch = (self.conn, batch.tenant_id, batch.id)
        return deque(shards.list_waiting(*of_batch, limit, size_class=name, limits=limits))

    def _limits(self, model: ModelPin, one: SizeClass, most: int) -> tuple[int, int] | None:
        """None where all of the class find a machine, which is nearly always."""
        needs = Needs(model, features=features_in(one.size_class))
        longest, least = (min(limit, most) for limit in find_limits(needs, self.fleet))
        if one.max_row_tokens <= longest and one.least_row_tokens <= least:
            return None
        return longest, least

    def _route_first(self, batch: Batch, head: deque[ShardRow]) -> ToLane | None:
        """Of the first Shard of a class that does not wait for a machine; the others are left."""
        while head:
            found = self._route(batch, head[0])
            if isinstance(found, ToLane):
                return found
            head.popleft()
        return None

    def _route(self, batch: Batch, shard: ShardRow) -> Route:
        needs = needs_of_shard(batch.model, shard)
        return route(needs, self.fleet, self._load(batch.model), now=self._now)

    def _load(self, model: ModelPin) -> Load:
        full = frozenset(lane for lane, room in self.room.items() if room <= 0)
        return Load(self._sent, self._waiting.get(model.key, 0.0), full, self._short)
