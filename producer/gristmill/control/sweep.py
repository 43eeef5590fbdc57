"""Repairs what a lost message left undone, and ends what is due: cheap, called every few seconds.

It sees all tenants, and serves no caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gristmill.control.accept import accept_unheard
from gristmill.control.base import Control, read_batch
from gristmill.control.blocked import IN_VAIN
from gristmill.control.dispatch import ring
from gristmill.control.finalize import finalize, freeze, merge_ahead
from gristmill.control.fleet import forget_workers
from gristmill.control.impossible import refuse_impossible
from gristmill.control.observed import timed
from gristmill.control.removal import remove_unneeded
from gristmill.control.reroute import recall_one, reroute
from gristmill.control.routes import needs_of_shard
from gristmill.errors import CorruptDocument
from gristmill.ledger import batches, paces, shards
from gristmill.ledger.batch import Batch
from gristmill.ledger.due import list_due
from gristmill.ledger.shards import ShardRow
from gristmill.ledger.status import OPEN, BatchStatus, FreezeReason
from gristmill.pools import Fleet
from gristmill.queues.base import BULK_LANE
from gristmill.router import is_anybody_known, is_served, taken_row_tokens

log = logging.getLogger(__name__)

#: A silent Shard is looked after at least so often, however long it has been silent.
_MAX_DOUBLINGS = 6


@dataclass(slots=True)
class Place:
    """Where a sweep that paused or was broken off goes on: behind this batch."""

    after_id: str = ""


@timed("sweep")
def sweep(
    control: Control,
    *,
    end: Callable[[Control, Batch], object] | None = None,
    should_pause: Callable[[], bool] = lambda: False,
    place: Place | None = None,
) -> None:
    """One round over all batches that something is due for; it may pause between two of them.

    It begins at `place` and moves it on, whatever it raises, so that no batch keeps those behind
    it from their turn. `end` is called with each that may have to end; by default it ends here
    and now (`end_if_due`).
    Raises, after all of them had their turn, what the Store has lost of the first one.
    """
    place = place or Place()
    damage: CorruptDocument | None = None
    for batch in _due_batches(control, place.after_id):
        if should_pause():
            break
        place.after_id = batch.id
        try:
            _ring_silent_shards(control, batch)
            (end or end_if_due)(control, read_batch(control, batch.tenant_id, batch.id))
        except CorruptDocument as error:
            damage = damage or error
    else:
        place.after_id = ""
    reroute(control)
    refuse_impossible(control)
    merge_ahead(control)
    forget_workers(control)
    remove_unneeded(control)
    if damage is not None:
        raise damage


def must_end(control: Control, batch: Batch) -> bool:
    """Whether a batch is complete, overdue or cancelled, or on its way to its end."""
    if batch.freeze_reason is not None:
        return batch.status in OPEN
    return _reason_to_end(control, batch) is not None


def end_if_due(
    control: Control, batch: Batch, *, should_pause: Callable[[], bool] = lambda: False
) -> bool:
    """Freeze and finalize a batch that is complete, overdue or cancelled; whether it has ended.

    It may pause between two slices of its rows, and goes on from there when it is called again.
    """
    if batch.freeze_reason is None:
        reason = _reason_to_end(control, batch)
        if reason is None or not freeze(control, batch, reason):
            return False
        log.info("batch frozen batch=%s reason=%s", batch.id, reason)
    return finalize(control, batch.tenant_id, batch.id, should_pause=should_pause)


def _reason_to_end(control: Control, batch: Batch) -> FreezeReason | None:
    if batch.status is BatchStatus.CANCELLING:
        return FreezeReason.CANCELLED
    if batch.status is BatchStatus.IN_PROGRESS and batch.completed + batch.failed == batch.total:
        return FreezeReason.COMPLETE
    if batch.status is BatchStatus.IN_PROGRESS and batch.budget_used_at is not None:
        return FreezeReason.BUDGET
    if batch.expires_at is not None and batch.expires_at <= control.clock():
        return FreezeReason.EXPIRED
    return None


def _ring_silent_shards(control: Control, batch: Batch) -> None:
    if batch.status is not BatchStatus.IN_PROGRESS or batch.freeze_reason:
        return
    now = control.now
    with control.ledger.read() as conn:
        due = shards.list_due_to_ring(conn, batch.tenant_id, batch.id, now)
    for shard in due:
        # Its Bells may have been lost, not its worker.
        if accept_unheard(control, batch, shard.n):
            continue
        to = shard.lane or BULK_LANE
        needs, fleet = needs_of_shard(batch.model, shard), control.fleet
        row_tokens = taken_row_tokens(needs, fleet)
        if row_tokens < shard.max_row_tokens or not is_served(needs, fleet, to):
            # What is sent anew gets its row limit, and the Lane of somebody who is there.
            recall_one(control, shard)
            continue
        if _is_for_nobody(control, batch, shard, fleet):
            # Better an answer that ends where the machine does than none.
            row_tokens = shard.least_row_tokens
        doublings = min(shard.num_rings + 1, _MAX_DOUBLINGS)
        ring_at = now + int(control.settings.resend_after_s * 2**doublings)
        with control.ledger.write() as conn:
            is_silent = shards.mark_rung(conn, shard, ring_at=ring_at)
        if is_silent:
            log.info("shard rung again batch=%s shard=%d", batch.id, shard.n)
            control.telemetry.metrics.add("gristmill_retries_total", ("shard",))
            ring(control, batch, shard, lane=to, row_tokens=row_tokens)


def _is_for_nobody(control: Control, batch: Batch, shard: ShardRow, fleet: Fleet) -> bool:
    """Whether it was sent in vain to workers that do work, and none says what it takes."""
    if shard.num_rings < IN_VAIN - 1 or is_anybody_known(batch.model, fleet):
        return False
    with control.ledger.read() as conn:
        found = paces.list_paces(conn, BULK_LANE)
    return any(
        p.model_name == batch.model.name and p.heard_at > (shard.sent_at or 0) for p in found
    )


def _due_batches(control: Control, after_id: str) -> Iterator[Batch]:
    while True:
        with control.ledger.read() as conn:
            page = list_due(conn, now=control.now, after_id=after_id)
        if not page:
            return
        yield from page
        after_id = page[-1].id


def open_batches(control: Control) -> Iterator[Batch]:
    """Of all tenants, those that are not at their end."""
    after_id = ""
    while True:
        with control.ledger.read() as conn:
            page = batches.list_open(conn, after_id=after_id)
        if not page:
            return
        yield from page
        after_id = page[-1].id
