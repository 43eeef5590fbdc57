"""Keeps a short window of work on the Lane; the backlog waits in the Ledger, not in the queue."""

from __future__ import annotations

from gristmill import crash_points
from gristmill.control.base import Control
from gristmill.ledger import batches, shards
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.queues.base import BULK_LANE
from gristmill.types import ShardPointer
from gristmill.wire import encode_pointer


def dispatch(control: Control) -> int:
    """Send the next Shards, the most urgent batch first, while the window has room; how many."""
    room = control.settings.dispatch_window_shards - control.queue.stats(BULK_LANE).visible
    if room <= 0:
        return 0
    now = control.now
    ring_at = now + int(control.settings.resend_after_s)
    sent: list[tuple[Batch, ShardRow]] = []
    with control.ledger.write() as conn:
        for batch in batches.list_with_waiting_shards(conn, limit=room):
            waiting = shards.list_waiting(conn, batch.tenant_id, batch.id, room - len(sent))
            sent += [
                (batch, shard)
                for shard in waiting
                if shards.mark_sent(conn, shard, now=now, ring_at=ring_at)
            ]
    # Marked first: what is lost between the two is rung by the sweep, nothing is sent twice.
    for batch, shard in sent:
        crash_points.at("sending", batch=batch.id, shard=shard.n)
        ring(control, batch, shard)
        crash_points.at("sent", batch=batch.id, shard=shard.n)
    return len(sent)


def ring(control: Control, batch: Batch, shard: ShardRow) -> None:
    """Put the pointer of a Shard on its Lane."""
    pointer = ShardPointer(
        batch.tenant_id,
        batch.id,
        batch.run_id,
        shard.n,
        shard.num_jobs,
        shard.num_prompt_tokens,
        control.control_lane,
    )
    control.queue.send(
        BULK_LANE,
        encode_pointer(pointer),
        message_id=f"{batch.id}/{batch.run_id}/{shard.n}",
        num_rows=shard.num_rows,
        num_tokens=shard.num_prompt_tokens,
        tenant_id=batch.tenant_id,
    )


def recall(control: Control, batch: Batch) -> None:
    """Let all Shards wait again that were sent: for a queue that has forgotten its messages."""
    with control.ledger.write() as conn:
        shards.recall(conn, batch.tenant_id, batch.id)
