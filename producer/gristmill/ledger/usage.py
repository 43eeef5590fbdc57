"""Queries about what was accepted, by day: counted in the transaction that accepts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, literal, select, tuple_
from sqlalchemy import update as sql_update

from gristmill.ledger.batch import Batch
from gristmill.ledger.schema_account import usage
from gristmill.ledger.status import FreezeReason
from gristmill.types import Usage

DAY_S = 86400
_COUNTS = ("completed", "failed", "prompt_tokens", "completion_tokens", "cached_tokens")


@dataclass(frozen=True, slots=True)
class UsageKey:
    """What a line of usage is about; None where it was summed over."""

    day: int | None
    tenant_id: str
    batch_id: str | None
    model: str


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Rows that were accepted, and their tokens."""

    key: UsageKey
    completed: int
    failed: int
    usage: Usage


def add(
    conn: Connection, batch: Batch, *, now: int, completed: int, failed: int, used: Usage
) -> None:
    """In the transaction that lets these rows count, which holds the batch."""
    key = {
        "tenant_id": batch.tenant_id,
        "day": now // DAY_S,
        "batch_id": batch.id,
        "model": batch.model.name,
    }
    _count(conn, key, {"completed": completed, "failed": failed, **asdict(used)})


def forget(conn: Connection, tenant_id: str, batch_id: str) -> None:
    """The file of the batch was refused as a whole: nothing of it counts."""
    conn.execute(delete(usage).where(usage.c.tenant_id == tenant_id, usage.c.batch_id == batch_id))


def settle(conn: Connection, ended: Mapping[str, Any]) -> None:
    """Of a batch whose end a rebuilt Ledger has learned, given as its row.

    What is not counted yet counts on its last day.
    """
    ends = ("completed_at", "expired_at", "cancelled_at", "created_at")
    day = next(ended[name] for name in ends if ended.get(name)) // DAY_S
    # Rows that never ran are failed as well, but where all have run.
    all_ran = ended["freeze_reason"] == FreezeReason.COMPLETE
    key = {"tenant_id": ended["tenant_id"], "batch_id": ended["id"]}
    of_batch = [usage.c[name] == value for name, value in key.items()]
    sums = [func.coalesce(func.sum(usage.c[name]), 0) for name in _COUNTS]
    counted = conn.execute(select(*sums).where(*of_batch)).one()
    missing = {
        name: max(ended[name] - int(before), 0)
        for name, before in zip(_COUNTS, counted, strict=True)
        if name != "failed" or all_ran
    }
    _count(conn, {**key, "day": day, "model": ended["model_name"]}, missing)


def sum_by_model(conn: Connection, *, since_day: int) -> dict[str, Usage]:
    """Of all tenants together, for gauges."""
    tokens = (usage.c.prompt_tokens, usage.c.completion_tokens, usage.c.cached_tokens)
    query = (
        select(usage.c.model, *(func.sum(column) for column in tokens))
        .where(usage.c.day >= since_day)
        .group_by(usage.c.model)
    )
    return {model: Usage(*map(int, sums)) for model, *sums in conn.execute(query)}


def list_lines(
    conn: Connection,
    tenant_id: str | None,
    *,
    since_day: int,
    until_day: int,
    by: Iterable[str],
    limit: int,
    after: UsageKey | None = None,
) -> tuple[list[UsageLine], bool]:
    """The next lines behind `after`, and whether there are more: of the days before `until_day`.

    Of one tenant or, for an operator, of all (None); always by model, and by `day` and `batch`
    where `by` names them.
    """
    wanted = set(by)
    columns: list[ColumnElement[Any]] = [usage.c.tenant_id, usage.c.model]
    behind: list[Any] = [after.tenant_id, after.model] if after else []
    if "batch" in wanted:
        columns.insert(1, usage.c.batch_id)
        behind[1:1] = [after.batch_id] if after else []
    if "day" in wanted:
        columns.insert(0, usage.c.day)
        behind[0:0] = [after.day] if after else []
    counts = (usage.c.completed, usage.c.failed)
    tokens = (usage.c.prompt_tokens, usage.c.completion_tokens, usage.c.cached_tokens)
    query = (
        select(*columns, *(func.sum(column).label(column.name) for column in (*counts, *tokens)))
        .where(usage.c.day >= since_day, usage.c.day < until_day)
        .group_by(*columns)
        .order_by(*columns)
        .limit(limit + 1)
    )
    if tenant_id is not None:
        query = query.where(usage.c.tenant_id == tenant_id)
    if after is not None:
        query = query.where(tuple_(*columns) > tuple_(*map(literal, behind)))
    rows = conn.execute(query).mappings().all()
    return [_line(dict(row)) for row in rows[:limit]], len(rows) > limit


def mean_output_tokens(
    conn: Connection, tenant_id: str, model: str, *, since_day: int
) -> float | None:
    """Of the tenant's answered rows on this model; None where there are none."""
    query = select(func.sum(usage.c.completed), func.sum(usage.c.completion_tokens)).where(
        usage.c.tenant_id == tenant_id, usage.c.model == model, usage.c.day >= since_day
    )
    rows, tokens = conn.execute(query).one()
    return float(tokens) / float(rows) if rows else None


def _count(conn: Connection, key: Mapping[str, Any], new: Mapping[str, int]) -> None:
    if not any(new.values()):
        return
    statement = sql_update(usage).where(*(usage.c[name] == value for name, value in key.items()))
    summed = {name: usage.c[name] + count for name, count in new.items()}
    if conn.execute(statement.values(**summed)).rowcount == 0:
        conn.execute(insert(usage).values(**key, **dict.fromkeys(_COUNTS, 0) | dict(new)))


def _line(row: dict[str, Any]) -> UsageLine:
    return UsageLine(
        UsageKey(row.get("day"), row["tenant_id"], row.get("batch_id"), row["model"]),
        int(row["completed"]),
        int(row["failed"]),
        Usage(
            prompt_tokens=int(row["prompt_tokens"]),
            completion_tokens=int(row["completion_tokens"]),
            cached_tokens=int(row["cached_tokens"]),
        ),
    )
