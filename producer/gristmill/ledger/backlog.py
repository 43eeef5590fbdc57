"""Queries about what is left to do, of all tenants together: for gauges, never for a caller."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from gristmill.ledger.schema import batches, shards
from gristmill.ledger.shards import ShardState
from gristmill.ledger.status import OPEN, BatchStatus
from gristmill.types import ModelPin


@dataclass(frozen=True, slots=True)
class Waiting:
    """Shards of one model that have Jobs without a result, alike in where they are.

    `lane` is None as long as they were not sent. Tokens are those expected of their open Jobs.
    """

    model_name: str
    state: ShardState
    lane: str | None
    num_shards: int
    num_jobs: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class OpenBatches:
    status: BatchStatus
    num: int
    #: Of the oldest one, in Unix seconds.
    created_at: int


def list_waiting(conn: Connection) -> list[Waiting]:
    """Of the batches that run, along the index of Shards that are not done."""
    num_left = shards.c.num_jobs - shards.c.num_accepted
    tokens_left = shards.c.num_expected_tokens * num_left / shards.c.num_jobs
    key = (batches.c.model_name, shards.c.state, shards.c.lane)
    query = (
        select(*key, func.count(), func.sum(num_left), func.sum(tokens_left))
        .join(batches, batches.c.id == shards.c.batch_id)
        .where(
            shards.c.state.in_([ShardState.WAITING, ShardState.SENT]),
            batches.c.status == BatchStatus.IN_PROGRESS,
            batches.c.freeze_reason.is_(None),
        )
        .group_by(*key)
    )
    return [
        Waiting(model, ShardState(state), lane, count, int(jobs), int(tokens))
        for model, state, lane, count, jobs, tokens in conn.execute(query)
    ]


def list_models(conn: Connection) -> list[ModelPin]:
    """What batches that run ask for."""
    of = batches.c
    query = (
        select(of.model_name, of.model_revision, of.tokenizer_hash, of.dtype)
        .where(of.status == BatchStatus.IN_PROGRESS, of.freeze_reason.is_(None))
        .distinct()
    )
    return [ModelPin(*row) for row in conn.execute(query)]


def list_open(conn: Connection) -> list[OpenBatches]:
    """By status; those with none are left out."""
    query = (
        select(batches.c.status, func.count(), func.min(batches.c.created_at))
        .where(batches.c.status.in_(OPEN))
        .group_by(batches.c.status)
    )
    return [
        OpenBatches(BatchStatus(status), count, created_at)
        for status, count, created_at in conn.execute(query)
    ]
