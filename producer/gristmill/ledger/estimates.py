"""Queries about estimates: what a file would cost as a batch. Each step is a conditional update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from gristmill.ledger.oldest import remove_oldest
from gristmill.ledger.schema_account import estimates
from gristmill.types import Endpoint


class EstimateStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


_IDS_AT_ONCE = 500
_OPEN = (EstimateStatus.QUEUED, EstimateStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line. `fails` says what it would fail: the `batch`, or its `row`."""

    fails: str
    code: str
    message: str
    line: int | None
    param: str | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Rows and tokens are those of the lines before `byte_offset`, where reading goes on."""

    id: str
    tenant_id: str
    status: EstimateStatus
    input_file_id: str
    endpoint: Endpoint
    model_name: str
    created_at: int
    byte_offset: int = 0
    line_no: int = 0
    num_rows: int = 0
    num_refused: int = 0
    prompt_tokens: int = 0
    max_output_tokens: int = 0
    num_problems: int = 0
    due_at: int = 0
    problems: tuple[Problem, ...] = ()
    forecast: Mapping[str, Any] | None = None
    completed_at: int | None = None
    expires_at: int | None = None

    @property
    def would_run(self) -> bool | None:
        """Whether a batch of the file would; None until it is known."""
        if self.status in _OPEN:
            return None
        return all(problem.fails == "row" for problem in self.problems)


def add(conn: Connection, estimate: Estimate) -> None:
    conn.execute(insert(estimates).values(**_values(estimate)))


def get(conn: Connection, tenant_id: str, estimate_id: str, *, now: int) -> Estimate | None:
    """None for one that has expired, too."""
    query = select(estimates).where(
        estimates.c.tenant_id == tenant_id,
        estimates.c.id == estimate_id,
        estimates.c.expires_at > now,
    )
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else _estimate(row)


def get_all(
    conn: Connection, tenant_id: str, estimate_ids: Sequence[str], *, now: int
) -> dict[str, Estimate]:
    """Those of these that there are, by their ids."""
    found: dict[str, Estimate] = {}
    for start in range(0, len(estimate_ids), _IDS_AT_ONCE):
        query = select(estimates).where(
            estimates.c.tenant_id == tenant_id,
            estimates.c.id.in_(estimate_ids[start : start + _IDS_AT_ONCE]),
            estimates.c.expires_at > now,
        )
        found |= {row["id"]: _estimate(row) for row in conn.execute(query).mappings()}
    return found


def count_open(conn: Connection, tenant_id: str) -> int:
    """Those of a tenant that are not at their end."""
    query = select(func.count()).select_from(estimates)
    of_tenant = (estimates.c.tenant_id == tenant_id, estimates.c.status.in_(_OPEN))
    return int(conn.execute(query.where(*of_tenant)).scalar_one())


def list_due(conn: Connection, *, now: int, limit: int = 100) -> list[Estimate]:
    """Of all tenants those to be read on, the oldest first: for control, never for a caller."""
    query = select(estimates).where(estimates.c.status.in_(_OPEN), estimates.c.due_at <= now)
    query = query.order_by(estimates.c.created_at, estimates.c.id).limit(limit)
    return [_estimate(row) for row in conn.execute(query).mappings()]


def replace(conn: Connection, before: Estimate, now: Estimate) -> bool:
    """One change of an estimate. False when somebody else was faster, or it has ended."""
    statement = update(estimates).where(
        estimates.c.tenant_id == before.tenant_id,
        estimates.c.id == before.id,
        estimates.c.status == before.status,
        estimates.c.byte_offset == before.byte_offset,
        estimates.c.due_at == before.due_at,
    )
    return conn.execute(statement.values(**_values(now))).rowcount == 1


def remove_expired(conn: Connection, *, now: int, limit: int) -> int:
    """Of all tenants, the oldest first; how many."""
    return remove_oldest(conn, estimates, estimates.c.expires_at, before=now + 1, limit=limit)


def _values(estimate: Estimate) -> dict[str, Any]:
    return asdict(estimate) | {"problems": [asdict(one) for one in estimate.problems]}


def _estimate(row: RowMapping) -> Estimate:
    fields = dict(row)
    return Estimate(
        status=EstimateStatus(fields.pop("status")),
        endpoint=Endpoint(fields.pop("endpoint")),
        problems=tuple(Problem(**one) for one in fields.pop("problems")),
        **fields,
    )
