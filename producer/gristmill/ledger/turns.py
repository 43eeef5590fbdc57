"""Queries of dispatch: which tenants and batches of a Lane have Shards waiting, and in which order.

They see all tenants and serve no caller. None of them reads the backlog: they look at what is out
with workers, at each tenant with work once, and at the batches in front. Only `list_demands` and
`list_running` read a line for each open batch, every few seconds at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    exists,
    false,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from gristmill.fleet import ModelKey
from gristmill.ledger.batch import Batch, batch_from_row
from gristmill.ledger.schema import batches, shards
from gristmill.ledger.schema_dispatch import lanes, shares
from gristmill.ledger.shards import ShardState
from gristmill.ledger.status import BatchStatus
from gristmill.queues.base import BULK_LANE

#: Batches whose work is added up.
MAX_BATCHES = 10_000

_MODEL = (batches.c.model_revision, batches.c.tokenizer_hash, batches.c.dtype)
#: From which follows what a batch still needs.
_numbers = (
    batches.c.expected_tokens,
    batches.c.total,
    batches.c.completed,
    batches.c.failed,
    (batches.c.prompt_tokens + batches.c.completion_tokens).label("used_tokens"),
)


@dataclass(frozen=True, slots=True)
class LaneState:
    """What dispatch knew of a Lane when it last sent something; see schema_dispatch.py."""

    lane: str
    level: int = 0
    num_urgent: int = 0
    urgent_until: int | None = None
    looked_at: int = 0


@dataclass(frozen=True, slots=True)
class Only:
    """Batches of these models; with `classes` only those with Shards of these size classes."""

    models: frozenset[ModelKey]
    classes: frozenset[str] | None = None


def is_anything_waiting(conn: Connection, only: Only | None = None) -> bool:
    """Whether there is anything to send."""
    query = select(batches.c.id).where(*_sendable(), _has_waiting(only))
    return conn.execute(query.limit(1)).first() is not None


def newest_running(conn: Connection) -> tuple[int, int]:
    """When the newest of the running batches began, and how many run: if neither has grown, what
    waits is of batches that were there before. (One that begins in the second in which another
    ends may be missed.)"""
    of = batches.c
    query = select(func.max(of.in_progress_at), func.count())
    newest, num_running = conn.execute(query.where(of.status == BatchStatus.IN_PROGRESS)).one()
    return newest or 0, num_running


def hold_lane(conn: Connection, lane: str) -> LaneState:
    """Nobody else dispatches on the Lane until this transaction ends."""
    query = select(lanes).where(lanes.c.lane == lane).with_for_update()
    found = conn.execute(query).mappings().one_or_none()
    if found is None:
        # Somebody else may be a moment faster.
        with suppress(IntegrityError), conn.begin_nested():
            conn.execute(insert(lanes).values(**asdict(LaneState(lane))))
        found = conn.execute(query).mappings().one()
    return LaneState(**found)


def save_lane(conn: Connection, state: LaneState) -> None:
    """In the transaction that holds the Lane."""
    conn.execute(update(lanes).where(lanes.c.lane == state.lane).values(**asdict(state)))


def list_tenants(conn: Connection, lane: str, only: Only | None = None) -> dict[str, int | None]:
    """The tenants with Shards waiting: tokens finished for them on the Lane, None for new ones."""
    running = batches.c.status == BatchStatus.IN_PROGRESS
    # From one tenant to the next along the index, whatever the number of their batches.
    first = select(func.min(batches.c.tenant_id).label("tenant_id")).where(running)
    known = first.cte("known", recursive=True)
    following = (
        select(func.min(batches.c.tenant_id))
        .where(running, batches.c.tenant_id > known.c.tenant_id)
        .scalar_subquery()
    )
    known = known.union_all(select(following).where(known.c.tenant_id.is_not(None)))
    has_work = (
        select(batches.c.id)
        .where(*_sendable(), batches.c.tenant_id == known.c.tenant_id, _has_waiting(only))
        .exists()
    )
    of_tenant = and_(shares.c.lane == lane, shares.c.tenant_id == known.c.tenant_id)
    query = (
        select(known.c.tenant_id, shares.c.num_tokens)
        .select_from(known.outerjoin(shares, of_tenant))
        .where(known.c.tenant_id.is_not(None), has_work)
    )
    return {row.tenant_id: row.num_tokens for row in conn.execute(query)}


def move_shares(conn: Connection, lane: str, moved: Mapping[str, int]) -> None:
    """Add to the counts of tenants, from 0 for new ones, in the transaction that holds the Lane."""
    for tenant_id, num_tokens in sorted(moved.items()):
        of_tenant = (shares.c.lane == lane, shares.c.tenant_id == tenant_id)
        # What is accepted meanwhile is added as well.
        changed = conn.execute(
            update(shares).where(*of_tenant).values(num_tokens=shares.c.num_tokens + num_tokens)
        )
        if not changed.rowcount:
            conn.execute(
                insert(shares).values(lane=lane, tenant_id=tenant_id, num_tokens=num_tokens)
            )


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What workers still have to do of the Shards of a tenant and a model on a Lane, in tokens."""

    tenant_id: str
    lane: str
    model: ModelKey
    num_tokens: int


def list_under_way(conn: Connection) -> list[UnderWay]:
    """Of all Shards that were sent; those of an earlier version were on the mixed Lane."""
    num_left = shards.c.num_jobs - shards.c.num_accepted
    expected = func.sum(shards.c.num_expected_tokens * num_left / shards.c.num_jobs)
    key = (shards.c.tenant_id, shards.c.lane, *_MODEL)
    query = (
        select(*key, expected)
        .join(batches, batches.c.id == shards.c.batch_id)
        .where(shards.c.state == ShardState.SENT, batches.c.status == BatchStatus.IN_PROGRESS)
        .group_by(*key)
    )
    return [
        UnderWay(tenant_id, lane or BULK_LANE, (revision, tokenizer, dtype), int(num_tokens))
        for tenant_id, lane, revision, tokenizer, dtype, num_tokens in conn.execute(query)
    ]


def tokens_left(conn: Connection) -> dict[ModelKey, int]:
    """By model, what rows without an answer are expected to take, sent or not: of open batches."""
    num_left = batches.c.total - batches.c.completed - batches.c.failed
    expected = func.sum(batches.c.expected_tokens * num_left / batches.c.total)
    query = select(*_MODEL, expected).where(*_sendable(), batches.c.total > 0).group_by(*_MODEL)
    return {(r, t, d): int(num_tokens) for r, t, d, num_tokens in conn.execute(query)}


def list_next(
    conn: Connection, tenant_id: str, *, limit: int, only: Only | None = None
) -> list[Batch]:
    """Batches of a tenant with Shards waiting, the one whose turn it is in front."""
    query = (
        select(batches)
        .where(*_sendable(), batches.c.tenant_id == tenant_id, _has_waiting(only))
        .order_by(batches.c.rank, batches.c.due_at, batches.c.created_at, batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def list_due_until(
    conn: Connection, until: int, *, limit: int, only: Only | None = None
) -> list[Batch]:
    """Batches with Shards waiting that are due by then, the earliest in front."""
    query = (
        select(batches)
        .where(*_sendable(), batches.c.due_at <= until, _has_waiting(only))
        .order_by(batches.c.due_at, batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def list_demands(conn: Connection, *, until: int) -> list[tuple[str, int, dict[str, int]]]:
    """Of the batches that run: model, `due_at`, and the numbers from which what they need follows.

    The earliest deadline first.
    """
    query = (
        select(batches.c.model_name, batches.c.due_at, *_numbers)
        .where(*_sendable(), batches.c.due_at <= until)
        .order_by(batches.c.due_at, batches.c.id)
        .limit(MAX_BATCHES)
    )
    found = [dict(row) for row in conn.execute(query).mappings()]
    return [(row.pop("model_name"), row.pop("due_at"), row) for row in found]


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """`is_out`: Shards of it are out with workers."""

    id: str
    tenant_id: str
    model_name: str
    expected_tokens: int
    total: int
    completed: int
    failed: int
    used_tokens: int
    is_out: bool


def list_running(conn: Connection) -> list[RunningBatch]:
    """The batches of all tenants that run, tenant by tenant in the order of their turns."""
    is_out = exists().where(shards.c.batch_id == batches.c.id, shards.c.state == ShardState.SENT)
    of = batches.c
    query = (
        select(of.id, of.tenant_id, of.model_name, *_numbers, is_out.label("is_out"))
        .where(*_sendable())
        .order_by(of.tenant_id, of.rank, of.due_at, of.created_at, of.id)
        .limit(MAX_BATCHES)
    )
    return [RunningBatch(**row) for row in conn.execute(query).mappings()]


def _sendable() -> tuple[ColumnElement[bool], ...]:
    return (
        batches.c.status == BatchStatus.IN_PROGRESS,
        batches.c.freeze_reason.is_(None),
        batches.c.budget_used_at.is_(None),
    )


def _has_waiting(only: Only | None) -> ColumnElement[bool]:
    """Whether a batch has Shards to be sent; looks at no more than one of each size class."""
    of_batch = shards.c.batch_id == batches.c.id, shards.c.state == ShardState.WAITING
    is_waiting = exists().where(*of_batch)
    if only is None:
        return is_waiting
    is_of_model = or_(
        false(),
        *(
            and_(*(column == value for column, value in zip(_MODEL, model, strict=True)))
            for model in sorted(only.models)
        ),
    )
    if only.classes is None:
        return is_of_model & is_waiting
    of_class = exists().where(*of_batch, shards.c.size_class.in_(sorted(only.classes)))
    return is_of_model & of_class
