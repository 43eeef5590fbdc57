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
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from gristmill.ledger.batch import Batch, batch_from_row
from gristmill.ledger.schema import batches, shards
from gristmill.ledger.schema_dispatch import lanes, shares
from gristmill.ledger.shards import ShardState
from gristmill.ledger.status import BatchStatus

#: Batches whose work is added up.
MAX_BATCHES = 10_000

_has_waiting = exists().where(
    shards.c.batch_id == batches.c.id, shards.c.state == ShardState.WAITING
)
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


def is_anything_waiting(conn: Connection) -> bool:
    """Whether there is anything to send."""
    return (
        conn.execute(select(batches.c.id).where(*_sendable(), _has_waiting).limit(1)).first()
        is not None
    )


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


def list_tenants(conn: Connection, lane: str) -> dict[str, int | None]:
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
    has_work = exists().where(
        *_sendable(),
        batches.c.tenant_id == known.c.tenant_id,
        shards.c.batch_id == batches.c.id,
        shards.c.state == ShardState.WAITING,
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


def tokens_under_way(conn: Connection) -> dict[str, int]:
    """By tenant, what workers still have to do of the Shards that they were sent."""
    num_left = shards.c.num_jobs - shards.c.num_accepted
    expected = func.sum(shards.c.num_expected_tokens * num_left / shards.c.num_jobs)
    query = (
        select(shards.c.tenant_id, expected)
        .join(batches, batches.c.id == shards.c.batch_id)
        .where(shards.c.state == ShardState.SENT, batches.c.status == BatchStatus.IN_PROGRESS)
        .group_by(shards.c.tenant_id)
    )
    return {tenant_id: int(num_tokens) for tenant_id, num_tokens in conn.execute(query)}


def list_next(conn: Connection, tenant_id: str, *, limit: int) -> list[Batch]:
    """Batches of a tenant with Shards waiting, the one whose turn it is in front."""
    query = (
        select(batches)
        .where(*_sendable(), batches.c.tenant_id == tenant_id, _has_waiting)
        .order_by(batches.c.rank, batches.c.due_at, batches.c.created_at, batches.c.id)
        .limit(limit)
    )
    return [batch_from_row(row) for row in conn.execute(query).mappings()]


def list_due_until(conn: Connection, until: int, *, limit: int) -> list[Batch]:
    """Batches with Shards waiting that are due by then, the earliest in front."""
    query = (
        select(batches)
        .where(*_sendable(), batches.c.due_at <= until, _has_waiting)
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
