"""Queries about where Shards were sent, and what those that wait need. They serve no caller."""

from __future__ import annotations

from sqlalchemy import Connection, func, or_, select, update

from gristmill.ledger.schema import batches, shards
from gristmill.ledger.shards import ShardRow, ShardState, shard_from_row
from gristmill.ledger.size_classes import SizeClass
from gristmill.ledger.status import BatchStatus
from gristmill.types import ModelPin


def list_lanes(conn: Connection) -> list[str]:
    """The Lanes on which Shards of running batches are out."""
    query = (
        select(shards.c.lane)
        .distinct()
        .join(batches, batches.c.id == shards.c.batch_id)
        .where(
            shards.c.state == ShardState.SENT,
            shards.c.lane.is_not(None),
            batches.c.status == BatchStatus.IN_PROGRESS,
        )
        .order_by(shards.c.lane)
    )
    return list(conn.execute(query).scalars())


def list_silent(conn: Connection, lane: str, *, heard_by: int, limit: int = 100) -> list[ShardRow]:
    """Shards of running batches that were sent to a Lane, and neither sent nor heard of since.

    `heard_by` is the `ring_at` of what was last heard of at that moment.
    """
    query = (
        select(shards)
        .join(batches, batches.c.id == shards.c.batch_id)
        .where(
            shards.c.state == ShardState.SENT,
            shards.c.lane == lane,
            or_(shards.c.ring_at <= heard_by, shards.c.num_rings > 0),
            batches.c.status == BatchStatus.IN_PROGRESS,
            batches.c.freeze_reason.is_(None),
        )
        .order_by(shards.c.batch_id, shards.c.n)
        .limit(limit)
    )
    return [shard_from_row(row) for row in conn.execute(query).mappings()]


def list_sent_longer(
    conn: Connection, model: ModelPin, row_tokens: int, *, limit: int = 100
) -> list[ShardRow]:
    """Shards of a model's running batches that are out, and have longer rows than this."""
    query = (
        select(shards)
        .join(batches, batches.c.id == shards.c.batch_id)
        .where(
            shards.c.state == ShardState.SENT,
            shards.c.max_row_tokens > row_tokens,
            batches.c.model_revision == model.revision,
            batches.c.tokenizer_hash == model.tokenizer_hash,
            batches.c.dtype == model.dtype,
            batches.c.status == BatchStatus.IN_PROGRESS,
            batches.c.freeze_reason.is_(None),
        )
        .order_by(shards.c.batch_id, shards.c.n)
        .limit(limit)
    )
    return [shard_from_row(row) for row in conn.execute(query).mappings()]


def list_unanswered(conn: Connection, *, min_rings: int) -> list[tuple[str, int, int]]:
    """Running batches with Shards that were sent so many times since anything was heard of them:
    (batch, how many Shards, tokens of their longest prompt with one of its answer)."""
    query = (
        select(shards.c.batch_id, func.count(), func.max(shards.c.least_row_tokens))
        .join(batches, batches.c.id == shards.c.batch_id)
        .where(
            shards.c.state == ShardState.SENT,
            shards.c.num_rings >= min_rings - 1,
            batches.c.status == BatchStatus.IN_PROGRESS,
            batches.c.freeze_reason.is_(None),
        )
        .group_by(shards.c.batch_id)
        .order_by(shards.c.batch_id)
    )
    return [(batch_id, num, longest) for batch_id, num, longest in conn.execute(query)]


def recall_one(conn: Connection, shard: ShardRow) -> bool:
    """Let a Shard wait again. False when it was heard of, or sent anew, meanwhile."""
    statement = update(shards).where(
        shards.c.tenant_id == shard.tenant_id,
        shards.c.batch_id == shard.batch_id,
        shards.c.n == shard.n,
        shards.c.state == ShardState.SENT,
        shards.c.ring_at == shard.ring_at,
    )
    return conn.execute(statement.values(state=ShardState.WAITING, lane=None)).rowcount == 1


def lower_needs(
    conn: Connection, shard: ShardRow, *, max_row_tokens: int, least_row_tokens: int
) -> None:
    """Its longest rows were refused."""
    statement = update(shards).where(
        shards.c.tenant_id == shard.tenant_id,
        shards.c.batch_id == shard.batch_id,
        shards.c.n == shard.n,
    )
    conn.execute(statement.values(max_row_tokens=max_row_tokens, least_row_tokens=least_row_tokens))


def limit_rows(conn: Connection, one: SizeClass, row_tokens: int) -> None:
    """Rows of a size class end at a limit, if their prompts leave room below it."""
    statement = update(shards).where(
        shards.c.tenant_id == one.tenant_id,
        shards.c.batch_id == one.batch_id,
        shards.c.state != ShardState.DONE,
        shards.c.size_class == one.size_class,
        shards.c.max_row_tokens > row_tokens,
        shards.c.least_row_tokens <= row_tokens,
    )
    conn.execute(statement.values(max_row_tokens=row_tokens))


def list_longest(
    conn: Connection, tenant_id: str, batch_id: str, size_class: str, limit: int
) -> list[ShardRow]:
    """Waiting Shards of a size class, those with the longest prompts first."""
    query = (
        select(shards)
        .where(
            shards.c.tenant_id == tenant_id,
            shards.c.batch_id == batch_id,
            shards.c.state == ShardState.WAITING,
            shards.c.size_class == size_class,
        )
        .order_by(shards.c.least_row_tokens.desc(), shards.c.n)
        .limit(limit)
    )
    return [shard_from_row(row) for row in conn.execute(query).mappings()]
