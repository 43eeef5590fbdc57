"""Refuses rows that no machine can ever run, each with the reason; all others run.

The rule: the batch has been in progress for GRISTMILL_REFUSE_AFTER_S; of its model some worker was
heard of within a day; none of those, alive or not, can run the row; none is loading just now; and
it is longer than GRISTMILL_FLEET_MAX_ROW_TOKENS. What is longer than that, while no worker of the
model is known at all, is refused too: the operator has said what his machines take.
"""

from __future__ import annotations

import logging
import secrets

from gristmill.control.accept import apply
from gristmill.control.base import Control
from gristmill.control.must_read import read_shard
from gristmill.control.routes import needs_of_shard
from gristmill.errors import CorruptDocument
from gristmill.ledger import batches, life, routed, size_classes
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.ledger.size_classes import SizeClass
from gristmill.ledger.status import BatchStatus
from gristmill.marks import CloseReason, Mark
from gristmill.needs import features_in, needs_of, needs_together
from gristmill.router import Fleet, Needs, find_never
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.types import RowError, RowResult, Segment
from gristmill.wire import encode_segment

log = logging.getLogger(__name__)

_CHORE, _EVERY_S = "refuse", 5
#: Shards that one sweep looks into at most: each is read from the Store.
_MAX_SHARDS = 50
_RUNNING = BatchStatus.IN_PROGRESS


def refuse_impossible(control: Control) -> None:
    """One round, every few seconds at most."""
    fleet, now = control.fleet, control.now
    if not (fleet.known or fleet.max_row_tokens):
        return
    with control.ledger.read() as conn:
        if not life.is_chore_due(conn, _CHORE, now=now):
            return
    with control.ledger.write() as conn:
        if not life.claim_chore(conn, _CHORE, now=now, every_s=_EVERY_S):
            return
    since = now - int(control.settings.refuse_after_s)
    with control.ledger.read() as conn:
        waiting = size_classes.list_waiting(conn, since=since)
    num_left = _MAX_SHARDS
    for one, model in waiting:
        needs = Needs(model, one.max_row_tokens, one.least_row_tokens, features_in(one.size_class))
        if find_never(needs, fleet) is None:
            continue
        num_left -= _refuse_in_class(control, one, fleet, num_left)
        if num_left <= 0:
            return


def _refuse_in_class(control: Control, one: SizeClass, fleet: Fleet, limit: int) -> int:
    """How many Shards had rows to refuse."""
    with control.ledger.read() as conn:
        batch = batches.get(conn, one.tenant_id, one.batch_id)
        assert batch is not None, "a batch that runs is there"
        longest = routed.list_longest(conn, batch.tenant_id, batch.id, one.size_class, limit)
    impossible = [s for s in longest if find_never(needs_of_shard(batch.model, s), fleet)]
    for shard in impossible:
        try:
            _refuse_in_shard(control, batch, shard, fleet)
        except CorruptDocument as error:  # this batch cannot go on, all others can
            log.error("rows not refused batch=%s shard=%d reason=%s", batch.id, shard.n, error)
    if len(impossible) < limit:
        with control.ledger.write() as conn:
            size_classes.lower(conn, one)
    return len(impossible)


def _refuse_in_shard(control: Control, batch: Batch, row: ShardRow, fleet: Fleet) -> None:
    """A Segment says why; it is stored first and counts then, as that of a worker."""
    shard = read_shard(control.store, batch, row.n)
    results, left = [], []
    for idx, job in enumerate(shard.jobs):
        needs = needs_of(job)
        asked = Needs(batch.model, needs.max_row_tokens, needs.least_row_tokens, needs.features)
        never = find_never(asked, fleet)
        if never is None:
            left.append(needs)
        else:
            error = RowError(never.code, never.reason, status_code=400)
            results.append(RowResult(idx, job.rows, error=error, finished_at=control.now))
    segment = Segment(
        *(batch.tenant_id, batch.id, batch.run_id, row.n),
        attempt_id=f"att-{secrets.token_hex(8)}",
        seq=0,
        results=tuple(results),
        mark=Mark(written_at=control.clock(), closed=CloseReason.DONE),
    )
    control.store.put(segment_key(bell_of(segment)), encode_segment(segment))
    longest = needs_together(left)
    with control.ledger.write() as conn:
        current = batches.get(conn, batch.tenant_id, batch.id, for_update=True)
        if current is None or current.freeze_reason or current.status is not _RUNNING:
            return
        apply(control, conn, current, [segment])
        routed.lower_needs(
            conn,
            row,
            max_row_tokens=longest.max_row_tokens,
            least_row_tokens=longest.least_row_tokens,
        )
    log.info("rows refused batch=%s shard=%d num_jobs=%d", batch.id, row.n, len(results))
