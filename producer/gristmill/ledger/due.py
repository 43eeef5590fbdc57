"""Which batches the sweep has to look at: however many are open, only these cost it anything."""

from __future__ import annotations

from sqlalchemy import Connection, and_, exists, or_, select

from gristmill.ledger.batch import Batch, batch_from_row
from gristmill.ledger.schema import batches, shards
from gristmill.ledger.shards import ShardRow, ShardState, shard_from_row
from gristmill.ledger.status import OPEN, BatchStatus


def list_due(conn: Connection, *, now: int, after_id: str = "", limit: int = 100) -> list[Batch]:
    """Open batches of all tenants that are to be ended, or have a Shard to be rung again."""
    has_silent_shard = exists().where(
        shards.c.batch_id == batches.c.id,
        shards.c.state == ShardState.SENT,
        shards.c.ring_at <= now,
    )
    is_running = batches.c.status == BatchStatus.IN_PROGRESS
    is_answered = batches.c.completed + batches.c.failed == batches.c.total
    query = (
        select(batches)
        .where(
            batches.c.status.in_(OPEN),
            batches.c.id > after_id,
            or_(
                batches.c.freeze_reason.is_not(None),
                batches.c.status == BatchStatus.CANCELLING,
                batches.c.expires_at <= now,
                and_(
                    is_running,
                    or_(is_answered, batches.c.budget_used_at.is_not(None), has_silent_shard),
                ),
            ),
        )
        .order_by(batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def list_unwritten(conn: Connection, *, limit: int) -> list[ShardRow]:
    """Shards that are done and neither merged nor kept as lines, of running batches of all tenants
    of which no Shard waits to be sent."""
    waiting = shards.alias()
    # Asked for first, and once: most Shards that are done are of batches that have ended.
    nearly_done = select(batches.c.id).where(
        batches.c.status == BatchStatus.IN_PROGRESS,
        batches.c.freeze_reason.is_(None),
        ~exists().where(waiting.c.batch_id == batches.c.id, waiting.c.state == ShardState.WAITING),
    )
    query = (
        select(shards)
        .join(batches, shards.c.batch_id == batches.c.id)
        .where(
            shards.c.batch_id.in_(nearly_done),
            shards.c.slice >= batches.c.merged_slices,
            shards.c.state == ShardState.DONE,
            shards.c.has_lines.is_(False),
        )
        .order_by(shards.c.batch_id, shards.c.n)
        .limit(limit)
    )
    return [shard_from_row(row) for row in conn.execute(query).mappings()]


def list_mergeable(conn: Connection, *, limit: int) -> list[Batch]:
    """Running batches of all tenants whose next slice to be merged has all of its results."""
    of_next_slice = (
        shards.c.batch_id == batches.c.id,
        shards.c.slice == batches.c.merged_slices,
    )
    query = (
        select(batches)
        .where(
            batches.c.status == BatchStatus.IN_PROGRESS,
            batches.c.freeze_reason.is_(None),
            batches.c.merged_slices < batches.c.num_slices,
            ~exists().where(*of_next_slice, shards.c.state != ShardState.DONE),
        )
        .order_by(batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]
