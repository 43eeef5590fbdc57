"""Which Shard of a batch goes next, and to which Lane: what the Router says, within the windows.

Of the size classes of a batch, that one goes first which has the most to lose elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

from sqlalchemy import Connection

from gristmill.fleet import Pool
from gristmill.ledger import shards, size_classes
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.ledger.turns import ModelKey, Only, UnderWay
from gristmill.needs import features_in
from gristmill.router import Fleet, Load, Needs, Route, ToLane, route
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


def key_of(model: ModelPin) -> ModelKey:
    """What a model is, whatever it is called."""
    return model.revision, model.tokenizer_hash, model.dtype


def sendable(fleet: Fleet) -> Only:
    """What anybody takes work of now, as far as that can be told without a look at the Shards.

    All, while nobody takes any, or has said so.
    """
    if not fleet.pools:
        return None
    most: dict[ModelKey, int | None] = {}
    for alive in fleet.pools:
        key = _key_of_pool(alive.pool)
        most[key] = max(most.get(key) or 0, alive.max_row_tokens)
    for key, row_tokens in most.items():
        known = [one for one in fleet.known if _key_of_pool(one.pool) == key]
        # Rows that may have more than anybody takes run on those that take the most, of those that
        # have their features.
        alike = len({(one.pool.features, one.pool.adapters) for one in known}) == 1
        if not alike or row_tokens == max(one.max_row_tokens for one in known):
            most[key] = None
    return most


def _key_of_pool(pool: Pool) -> ModelKey:
    return pool.revision, pool.tokenizer_hash, pool.dtype


class Routes:
    """One round of dispatch. `room` has how many more Shards each Lane takes.

    What lies ahead is `under_way`, and `left`, which counts by model what was sent and what was
    not; without it nothing is weighed.
    """

    def __init__(
        self,
        conn: Connection,
        fleet: Fleet,
        room: Mapping[str, int],
        now: float,
        under_way: Collection[UnderWay] = (),
        left: Mapping[ModelKey, int] | None = None,
    ) -> None:
        self.conn = conn
        self.fleet = fleet
        self.room = dict(room)
        self._now = now
        self._waiting: dict[ModelKey, float] = dict(left or {})
        self._sent: dict[str, float] = {}
        for one in under_way:
            self._sent[one.lane] = self._sent.get(one.lane, 0.0) + one.num_tokens
            self._count_out(one.model, one.num_tokens)

    @property
    def num_free(self) -> int:
        """Shards that all Lanes together take."""
        return sum(room for room in self.room.values() if room > 0)

    def next_of(self, batch: Batch) -> Iterator[tuple[ShardRow, ToLane]]:
        """Shard by Shard, as long as there is one that some Lane with room is best for."""
        heads = self._heads(batch)
        while True:
            best: tuple[tuple[float, int], deque[ShardRow], ToLane] | None = None
            for head in heads:
                to = self._route_first(batch, head)
                if to is not None and self.room.get(to.lane, 0) > 0:
                    order = (-to.lead_s, head[0].n)
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
        self._count_out(key_of(batch.model), num_tokens)

    def _count_out(self, key: ModelKey, num_tokens: float) -> None:
        if key in self._waiting:
            self._waiting[key] = max(self._waiting[key] - num_tokens, 0.0)

    def _heads(self, batch: Batch) -> list[deque[ShardRow]]:
        """The next Shards of each size class; one queue of all if there are no two classes."""
        found = size_classes.list_of_batch(self.conn, batch.tenant_id, batch.id)
        # Those of an earlier version have none.
        names: list[str | None] = [None] if len(found) < 2 else ["", *(c.size_class for c in found)]
        limit = min(self.num_free, _MAX_SHARDS) + _MORE_SHARDS
        return [
            deque(shards.list_waiting(self.conn, batch.tenant_id, batch.id, limit, size_class=name))
            for name in names
        ]

    def _route_first(self, batch: Batch, head: deque[ShardRow]) -> ToLane | None:
        """Of the first Shard of a class that does not wait for a machine; the others are left."""
        while head:
            found = self._route(batch, head[0])
            if isinstance(found, ToLane):
                return found
            head.popleft()
        return None

    def _route(self, batch: Batch, shard: ShardRow) -> Route:
        load = Load(
            self._sent,
            self._waiting.get(key_of(batch.model), 0.0),
            frozenset(lane for lane, room in self.room.items() if room <= 0),
        )
        return route(needs_of_shard(batch.model, shard), self.fleet, load, now=self._now)
