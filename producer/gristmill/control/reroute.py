"""Takes back what was sent to a pool that is gone, so that dispatch sends it where somebody is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from gristmill.control.accept import accept_unheard
from gristmill.control.base import Control
from gristmill.control.limits import RowLimits
from gristmill.control.routes import needs_of_shard
from gristmill.errors import QueueRefused
from gristmill.fleet import LOST_AFTER_S
from gristmill.ledger import batches, routed
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.loading import NO_LIMIT
from gristmill.pools import Fleet, Needs
from gristmill.queues.base import BULK_LANE
from gristmill.router import taken_row_tokens
from gristmill.types import ModelPin

log = logging.getLogger(__name__)

#: Shards that one sweep takes back at most: for each the Store is asked for a sign of life.
_MAX_RECALLED = 200


def reroute(control: Control) -> None:
    """One round: a Shard on the Lane of a pool of which nobody takes work any more waits again,
    unless it shows a sign of life. A Lane of which nothing is left is taken off the queue."""
    fleet = control.fleet
    _recall_too_long(control, fleet)
    alive = {pool.lane for pool in fleet.pools if pool.takes_own}
    with control.ledger.read() as conn:
        in_use = set(routed.list_lanes(conn))
    for lane in sorted(in_use - alive - {BULK_LANE}):
        _recall_of_lane(control, lane)
    removed = control.fleet_view.removed_lanes
    removed -= alive
    known = {pool.pool.lane: pool.heard_at for pool in fleet.known}
    gone = {lane for lane, at in known.items() if control.clock() - at > LOST_AFTER_S} | in_use
    for lane in sorted(gone - alive - removed - {BULK_LANE}):
        with control.ledger.read() as conn:
            if lane in routed.list_lanes(conn):
                continue
        try:
            control.queue.remove_lane(lane)
            log.info("lane removed, its pool is gone lane=%s", lane)
        except QueueRefused as error:  # this process has no right to; it costs nothing there
            log.warning("lane left behind lane=%s reason=%s", lane, error)
        removed.add(lane)


def _recall_too_long(control: Control, fleet: Fleet) -> None:
    """What was sent for machines that take more than any does, as is known by now, has a limit and
    waits again: it was sent while nobody was known, for instance."""
    for key in sorted({key for known in fleet.known for key in known.pool.model_keys}):
        model = ModelPin("", *key)
        most = taken_row_tokens(Needs(model, NO_LIMIT), fleet)
        with control.ledger.read() as conn:
            found = routed.list_sent_longer(conn, model, most, limit=_MAX_RECALLED)
        for batch, shard in _silent(control, found):
            row_tokens = taken_row_tokens(needs_of_shard(model, shard), fleet)
            with control.ledger.write() as conn:
                # Also those that receive the message that it was sent with can run it then.
                limit = RowLimits(control, conn, fleet).within(batch, shard, row_tokens)
            if limit is not None:
                recall_one(control, shard)


def recall_one(control: Control, shard: ShardRow) -> bool:
    """Let a Shard wait again that nobody who is there can run."""
    with control.ledger.write() as conn:
        is_recalled = routed.recall_one(conn, shard)
    if is_recalled:
        log.info("shard waits again batch=%s shard=%d", shard.batch_id, shard.n)
    return is_recalled


def _recall_of_lane(control: Control, lane: str) -> None:
    # Each sign of life, as each sending, has put off the next look by so much.
    heard_by = control.now + int(control.settings.resend_after_s - LOST_AFTER_S)
    with control.ledger.read() as conn:
        silent = routed.list_silent(conn, lane, heard_by=heard_by, limit=_MAX_RECALLED)
    for _, shard in _silent(control, silent):
        recall_one(control, shard)


def _silent(control: Control, found: Iterable[ShardRow]) -> Iterator[tuple[Batch, ShardRow]]:
    for shard in found:
        with control.ledger.read() as conn:
            batch = batches.get(conn, shard.tenant_id, shard.batch_id)
        # Its Bells may have been lost, not its worker.
        if batch is not None and not accept_unheard(control, batch, shard.n):
            yield batch, shard
