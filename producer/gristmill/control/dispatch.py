"""Keeps a short window of work on the Lane; the backlog waits in the Ledger, not in the queue."""

from __future__ import annotations

from gristmill.control.base import Control
from gristmill.ledger import batches, shards
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.ledger.status import BatchStatus
from gristmill.queues.base import BULK_LANE
from gristmill.types import ShardPointer
from gristmill.wire import encode_pointer


def dispatch(control: Control, batch: Batch) -> int:
    """Send the next Shards of a batch, in order, while the window has room; how many."""
    if batch.status is not BatchStatus.IN_PROGRESS or batch.freeze_reason:
        return 0
    room = control.settings.dispatch_window_shards - control.queue.stats(BULK_LANE).visible
    if room <= 0:
        return 0
    now = control.now
    ring_at = now + int(control.settings.resend_after_s)
    with control.ledger.write() as conn:
        waiting = shards.list_waiting(conn, batch.tenant_id, batch.id, room)
        sent = [s for s in waiting if shards.mark_sent(conn, s, now=now, ring_at=ring_at)]
    # Marked first: what is lost between the two is rung by the sweep, nothing is sent twice.
    for shard in sent:
        ring(control, batch, shard)
    return len(sent)


def dispatch_all(control: Control) -> int:
    """Dispatch every batch in turn."""
    with control.ledger.read() as conn:
        open_batches = batches.list_open(conn)
    return sum(dispatch(control, batch) for batch in open_batches)


def ring(control: Control, batch: Batch, shard: ShardRow) -> None:
    """Put the pointer of a Shard on its Lane."""
    pointer = ShardPointer(
        batch.tenant_id,
        batch.id,
        batch.run_id,
        shard.n,
        shard.num_jobs,
        shard.num_prompt_tokens,
    )
    control.queue.send(BULK_LANE, encode_pointer(pointer))


def recall(control: Control, batch: Batch) -> None:
    """Let all Shards wait again that were sent: for a queue that has forgotten its messages."""
    with control.ledger.write() as conn:
        shards.recall(conn, batch.tenant_id, batch.id)
