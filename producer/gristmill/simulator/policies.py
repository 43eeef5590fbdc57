"""Which Shard goes to which Lane, and when: the policies that a simulation compares.

`Router` is what Gristmill does: turns by control/fair_share.py, Lanes by router.py, as dispatch.py
puts them together over the Ledger. `OneLane` leaves the Router out of it. `Fifo` is a plain queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from gristmill.control.fair_share import (
    URGENT_IN_A_ROW,
    FairShare,
    find_urgent_until,
)
from gristmill.fleet import Feature
from gristmill.needs import RowNeeds, class_of
from gristmill.pools import Fleet, Needs
from gristmill.queues.base import BULK_LANE
from gristmill.router import Load, Rank, ToLane, route
from gristmill.short_pools import WaitingKind, find_short
from gristmill.simulator.backlog import Backlog, SimBatch
from gristmill.simulator.machine import PIN
from gristmill.simulator.shards import SimShard
from gristmill.simulator.work import Row

#: As in control/dispatch.py.
_LOOK_EVERY_S = 5.0
_MAX_LEAD_S, _MAX_LEAD_SHARDS = 60.0, 2
_FEATURES = frozenset({Feature.GENERATE.value})


class Room(Protocol):
    def __call__(self, lane: str, num_listeners: int) -> int:
        """How many more Shards may wait on a Lane that so many Workers listen to."""


class Policy(Protocol):
    """Asked at each turn of the control side."""

    name: str

    def class_of(self, row: Row) -> object:
        """Rows of different classes never travel together."""

    def next_shards(
        self, backlog: Backlog, fleet: Fleet, room: Room, *, now: float
    ) -> Iterator[tuple[str, SimShard]]:
        """What is to be sent now and where, taken out of the backlog."""


def _class_by_size(row: Row) -> object:
    return class_of(RowNeeds(row.num_tokens, row.prompt_tokens + 1, _FEATURES))


class Fifo:
    """A plain queue: everything lies on one Lane in the order in which it came, and any free
    Worker that can run the next Shard takes it. Its Shards are cut by size, as for the Router;
    with `is_mixed` they hold rows of all sizes in the order of the file."""

    def __init__(self, *, is_mixed: bool = False) -> None:
        self.name = "fifo-mixed" if is_mixed else "fifo"
        self._is_mixed = is_mixed

    def class_of(self, row: Row) -> object:
        return None if self._is_mixed else _class_by_size(row)

    def next_shards(
        self, backlog: Backlog, fleet: Fleet, room: Room, *, now: float
    ) -> Iterator[tuple[str, SimShard]]:
        for batch in list(backlog.waiting()):
            while batch.num_waiting:
                shard = next(batch.heads())
                yield BULK_LANE, backlog.take(batch, shard, BULK_LANE)
                batch.cut_ahead(1)


class OneLane:
    """Turns by shares and deadlines as in control/dispatch.py, and one Lane for all."""

    name = "one-lane"

    def __init__(self) -> None:
        self._level = 0
        self._num_urgent = 0
        self._urgent_until: float | None = None
        self._looked_at = float("-inf")

    def class_of(self, row: Row) -> object:
        return _class_by_size(row)

    def next_shards(
        self, backlog: Backlog, fleet: Fleet, room: Room, *, now: float
    ) -> Iterator[tuple[str, SimShard]]:
        lanes = self._lanes(backlog, fleet, room, now)
        self._look_for_deadlines(backlog, now)
        pace = backlog.pace.tokens_per_s or 0.0
        lead = max(_MAX_LEAD_SHARDS * backlog.max_shard_tokens, int(_MAX_LEAD_S * pace))
        tenants, under_way = backlog.tenants_waiting(), backlog.under_way()
        turns = FairShare(self._level, tenants, under_way, max_lead=lead)
        until = self._urgent_until
        for lane in lanes.in_order():
            done: set[str] = set()
            while lanes.has_room(lane):
                urgent = in_turn = None
                if until is not None and self._num_urgent < URGENT_IN_A_ROW:
                    urgent = _pick(backlog.due_until(until, now, pace), lanes, lane)
                if urgent is None:
                    in_turn = _pick_in_turn(backlog, turns, lanes, lane, done)
                picked = urgent or in_turn
                if picked is None and until is not None:
                    picked = _pick(backlog.due_until(until, now, pace), lanes, lane)
                if picked is None:
                    break
                self._num_urgent = self._num_urgent + 1 if urgent else 0
                batch, shard = picked
                turns.charge(batch.spec.tenant_id, shard.expected_tokens)
                lanes.take(shard, lane)
                yield lane, backlog.take(batch, shard, lane)
        backlog.move_shares(turns.moved)
        self._level = turns.level

    def _lanes(self, backlog: Backlog, fleet: Fleet, room: Room, now: float) -> LaneChoice:
        return LaneChoice({BULK_LANE: room(BULK_LANE, fleet.num_listeners(BULK_LANE))})

    def _look_for_deadlines(self, backlog: Backlog, now: float) -> None:
        if now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        pace = backlog.pace.tokens_per_s or 0.0
        self._urgent_until = find_urgent_until(backlog.demands(), now=now, tokens_per_s=pace)


class Router(OneLane):
    """What Gristmill does: the same turns, and Lanes by router.py as in control/routes.py."""

    name = "router"

    def _lanes(self, backlog: Backlog, fleet: Fleet, room: Room, now: float) -> LaneChoice:
        rooms = {lane: room(lane, fleet.num_listeners(lane)) for lane in fleet.lanes}
        return RoutedLanes(rooms, backlog, fleet, now)


class LaneChoice:
    """The Lanes during one turn, and how many more Shards each takes; BULK_LANE for all."""

    def __init__(self, room: dict[str, int]) -> None:
        self._room = room

    def in_order(self) -> list[str]:
        """Lanes of their own first."""
        return sorted(self._room, key=lambda lane: (lane == BULK_LANE, lane))

    def has_room(self, lane: str) -> bool:
        return self._room[lane] > 0

    def choose(self, shard: SimShard) -> tuple[Rank, str] | None:
        """The Lane that the Shard goes to now, and its rank there. None: it waits."""
        return (False, 0.0), BULK_LANE

    def take(self, shard: SimShard, lane: str) -> None:
        """A Shard was sent."""
        self._room[lane] -= 1


class RoutedLanes(LaneChoice):
    def __init__(self, room: dict[str, int], backlog: Backlog, fleet: Fleet, now: float) -> None:
        super().__init__(room)
        self._sent = dict(backlog.sent_tokens)
        self._waiting = backlog.waiting_tokens
        self._fleet = fleet
        self._now = now
        self._short = find_short(_kinds(backlog), fleet) if len(room) > 1 else frozenset()
        #: By size class, until something more is sent.
        self._chosen: dict[object, tuple[Rank, str] | None] = {}

    def choose(self, shard: SimShard) -> tuple[Rank, str] | None:
        if shard.size_class not in self._chosen:
            full = frozenset(lane for lane, room in self._room.items() if room <= 0)
            load = Load(self._sent, self._waiting, full, self._short)
            found = route(needs_of(shard), self._fleet, load, now=self._now)
            chosen = None
            if isinstance(found, ToLane) and found.lane not in full:
                chosen = found.rank, found.lane
            self._chosen[shard.size_class] = chosen
        return self._chosen[shard.size_class]

    def take(self, shard: SimShard, lane: str) -> None:
        super().take(shard, lane)
        self._chosen.clear()
        num_tokens = shard.expected_tokens
        self._sent[lane] = self._sent.get(lane, 0.0) + num_tokens
        self._waiting = max(self._waiting - num_tokens, 0.0)


def _kinds(backlog: Backlog) -> Iterator[WaitingKind]:
    for batch in backlog.waiting():
        for shard, num_tokens in batch.kinds():
            yield WaitingKind(needs_of(shard), num_tokens)


_Picked = tuple[SimBatch, SimShard]


def _pick_in_turn(
    backlog: Backlog, turns: FairShare, lanes: LaneChoice, lane: str, done: set[str]
) -> _Picked | None:
    """The next Shard for a Lane of the tenant whose turn it is; those `done` have none for it."""
    for tenant_id in turns.order():
        if tenant_id not in done:
            picked = _pick(backlog.waiting_of(tenant_id), lanes, lane)
            if picked is not None:
                return picked
            done.add(tenant_id)
    return None


def _pick(batches: Iterator[SimBatch], lanes: LaneChoice, lane: str) -> _Picked | None:
    """Of the first batch that has a Shard for the Lane; of its classes that of the lowest rank."""
    for batch in batches:
        found = [
            (chosen[0], shard.n, shard)
            for shard in batch.heads()
            if (chosen := lanes.choose(shard)) and chosen[1] == lane
        ]
        if found:
            return batch, min(found)[2]
    return None


def needs_of(shard: SimShard) -> Needs:
    """What dispatch knows of a Shard."""
    return Needs(
        PIN,
        max_row_tokens=shard.max_row_tokens,
        least_row_tokens=shard.least_row_tokens,
        features=_FEATURES,
        num_jobs=shard.num_jobs,
        num_prompt_tokens=shard.prompt_tokens,
        num_expected_tokens=shard.expected_tokens,
    )


#: By name, each made anew for each simulation.
POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "fifo-mixed": lambda: Fifo(is_mixed=True),
    "one-lane": OneLane,
    "router": Router,
}
