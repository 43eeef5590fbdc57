"""Keeps a short window of work on each Lane; the backlog waits in the Ledger, not in the queue.

Whose turn it is, fair_share.py decides; to which Lane its next Shard goes, the Router (routes.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from gristmill import crash_points
from gristmill.control.base import Control
from gristmill.control.budget import tokens_left
from gristmill.control.fair_share import URGENT_IN_A_ROW, Demand, FairShare, find_urgent_until
from gristmill.control.filling import Filling, Sent
from gristmill.control.fleet_view import Kinds
from gristmill.control.observed import span_of, tell_sent, timed
from gristmill.control.outlook import NO_SIGN_S
from gristmill.control.reroute import recall_one
from gristmill.control.routes import Routes, models_alive
from gristmill.errors import QueueError
from gristmill.fleet import ModelKey
from gristmill.ledger import paces, shards, turns
from gristmill.ledger.batch import Batch
from gristmill.ledger.batches import NEVER
from gristmill.ledger.shards import ShardRow
from gristmill.ledger.turns import LaneState
from gristmill.pools import Fleet
from gristmill.queues.base import BULK_LANE
from gristmill.router import ToLane
from gristmill.types import ShardPointer
from gristmill.wire import encode_pointer

log = logging.getLogger(__name__)

#: How often it is looked whether deadlines are close.
_LOOK_EVERY_S = 5
#: How far a tenant may be ahead of the others at most: so much work of all workers, and so many
#: Shards of the largest size.
_MAX_LEAD_S, _MAX_LEAD_SHARDS = 60.0, 2
#: For so many workers that listen to a Lane one more Shard is kept waiting there.
_LISTENERS_PER_SHARD = 16
#: Shards that one transaction marks at most, so that others need not wait long for it.
_MAX_SENT = 256


@timed("dispatch")
def dispatch(control: Control) -> int:
    """Send the next Shards while the windows have room; how many. Two at once are harmless."""
    fleet, now = control.fleet, control.clock()
    room = {lane: _room(control, fleet, lane) for lane in fleet.lanes}
    if max(room.values()) <= 0:
        return 0
    with control.ledger.read() as conn:
        if not turns.is_anything_waiting(conn, models_alive(fleet)):
            return 0
    left = control.fleet_view.tokens_left(control.ledger, now)
    kinds = control.fleet_view.kinds(control.ledger, now)
    with control.ledger.write() as conn:
        sent = list(_Round(control, conn, fleet, room, left=left, kinds=kinds).mark_next())
    # Marked first: what is lost between the two is rung by the sweep, nothing is sent twice.
    return sum(_send(control, batch, shard, to) for batch, shard, to in sent)


def _send(control: Control, batch: Batch, shard: ShardRow, to: ToLane) -> bool:
    """False when the Lane of a pool takes nothing: then the Shard waits again."""
    crash_points.at("sending", batch=batch.id, shard=shard.n)
    try:
        if control.fleet_view.is_shut(to.lane, control.clock()):
            recall_one(control, shard)
            return False
        ring(control, batch, shard, lane=to.lane, row_tokens=to.row_tokens)
    except QueueError as error:
        _shut(control, to.lane, error)
        recall_one(control, shard)
        return False
    crash_points.at("sent", batch=batch.id, shard=shard.n)
    tell_sent(control, batch, to.lane)
    return True


def _shut(control: Control, lane: str, error: QueueError) -> None:
    """Leave the Lane of a pool out for a while; the mixed one is the queue, and its error stays.

    SQS makes none for a minute that was taken away, and this process may have no right to.
    """
    if lane == BULK_LANE:
        raise error
    log.warning("lane left out for a while lane=%s reason=%s", lane, error)
    control.fleet_view.shut(lane, control.clock())


def _room(control: Control, fleet: Fleet, lane: str) -> int:
    """How many more Shards a Lane takes now."""
    if control.fleet_view.is_shut(lane, control.clock()):
        return 0
    try:
        return _window(control, fleet, lane) - control.queue.stats(lane).visible
    except QueueError as error:
        _shut(control, lane, error)
        return 0


def _window(control: Control, fleet: Fleet, lane: str) -> int:
    """Shards that are kept waiting on a Lane: more where many workers take from it."""
    many = fleet.num_listeners(lane) // _LISTENERS_PER_SHARD
    return max(control.settings.dispatch_window_shards, many)


class _Round:
    """One transaction that fills the windows of all Lanes.

    A tenant's share is of the whole fleet, so that turns are kept in one place (BULK_LANE).
    """

    def __init__(
        self,
        control: Control,
        conn: Connection,
        fleet: Fleet,
        room: Mapping[str, int],
        *,
        left: Mapping[ModelKey, int],
        kinds: Kinds,
    ) -> None:
        self._control = control
        self._conn = conn
        self._state = turns.hold_lane(conn, BULK_LANE)
        under_way = turns.list_under_way(conn)
        self._routes = Routes(
            *(conn, fleet, room, control.clock()), under_way=under_way, left=left, kinds=kinds
        )
        found = paces.list_paces(conn, BULK_LANE)
        #: By model, what its workers accomplish; none of those that nothing was heard of lately.
        self._speeds = {
            pace.model_name: pace.tokens_per_s
            for pace in found
            if pace.tokens_per_s and control.clock() - pace.heard_at <= NO_SIGN_S
        }
        # Those of old too: while all workers are away, nobody's lead is forgotten.
        all_tokens_per_s = sum(pace.tokens_per_s or 0.0 for pace in found)
        least_lead = _MAX_LEAD_SHARDS * control.settings.shard_max_tokens
        of_tenants: Counter[str] = Counter()
        for one in under_way:
            of_tenants[one.tenant_id] += one.num_tokens
        self._turns = FairShare(
            self._state.level,
            turns.list_tenants(conn, BULK_LANE, models_alive(fleet)),
            of_tenants,
            max_lead=max(least_lead, int(_MAX_LEAD_S * all_tokens_per_s)),
        )

    def mark_next(self) -> Iterator[Sent]:
        """The Shards whose turn it is, marked as sent; those for Lanes of their own first."""
        state = self._look_for_deadlines(self._state)
        num_urgent, num_left = state.num_urgent, _MAX_SENT
        for lane in sorted(self._routes.room, key=lambda lane: (lane == BULK_LANE, lane)):
            filling = Filling(
                *(self._control, self._conn, self._routes, self._turns),
                lane=lane,
                urgent_until=state.urgent_until,
                speeds=self._speeds,
            )
            while num_left > 0 and self._routes.room[lane] > 0:
                is_urgent = num_urgent < URGENT_IN_A_ROW
                marked = filling.next_urgent() if is_urgent else None
                if marked is not None:
                    num_urgent += 1
                else:
                    marked = filling.next_in_turn() or filling.next_urgent()
                    num_urgent = 0
                if marked is None:
                    break
                batch, shard, _ = marked
                self._turns.charge(batch.tenant_id, shard.num_expected_tokens)
                num_left -= 1
                yield marked
        turns.move_shares(self._conn, state.lane, self._turns.moved)
        state = replace(state, level=self._turns.level, num_urgent=num_urgent)
        if state != self._state:
            turns.save_lane(self._conn, state)

    def _look_for_deadlines(self, state: LaneState) -> LaneState:
        """With what is urgent found out anew, now and then."""
        now = self._control.now
        if 0 <= now - state.looked_at < _LOOK_EVERY_S:
            return state
        # Each model has workers of its own, which no other model's work can be done by.
        demands: dict[str, list[Demand]] = {}
        for model_name, due_at, numbers in turns.list_demands(self._conn, until=NEVER - 1):
            demands.setdefault(model_name, []).append(Demand(due_at, tokens_left(**numbers)))
        found = [
            find_urgent_until(of_model, now=now, tokens_per_s=self._speeds.get(model_name, 0.0))
            for model_name, of_model in demands.items()
        ]
        until = max((int(one) for one in found if one is not None), default=None)
        return replace(state, urgent_until=until, looked_at=now)


def ring(
    control: Control, batch: Batch, shard: ShardRow, *, lane: str = BULK_LANE, row_tokens: int = 0
) -> None:
    """Put the pointer of a Shard on its Lane, for a worker that takes rows of `row_tokens`."""
    span = span_of(control, batch, "dispatch")
    span.tell(shard=shard.n, lane=lane)
    pointer = ShardPointer(
        batch.tenant_id,
        batch.id,
        batch.run_id,
        shard.n,
        shard.num_jobs,
        shard.num_prompt_tokens,
        control.control_lane,
        # Whoever hears of no worker could refuse nothing that all of them give back.
        row_tokens=0 if control.fleet_view.is_sole else row_tokens,
        traceparent=span.traceparent,
    )
    with span:
        control.queue.send(
            lane,
            encode_pointer(pointer),
            # One that asks for a larger machine than is needed by now does not stand in its way.
            message_id=f"{batch.id}/{batch.run_id}/{shard.n}/{row_tokens}",
            num_rows=shard.num_rows,
            num_tokens=shard.num_prompt_tokens,
            tenant_id=batch.tenant_id,
        )


def recall(control: Control, batch: Batch) -> None:
    """Let all Shards wait again that were sent: for a queue that has forgotten its messages."""
    with control.ledger.write() as conn:
        shards.recall(conn, batch.tenant_id, batch.id)
