"""Queries that sum up what a tenant has under way, for the head of a page."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from gristmill.ledger.schema import batches
from gristmill.ledger.status import OPEN, BatchStatus


@dataclass(frozen=True, slots=True)
class Overview:
    """Of the batches of a tenant that are not at their end."""

    num_validating: int = 0
    num_running: int = 0
    #: Its result files are being written, or it is being cancelled.
    num_ending: int = 0
    #: Rows of the running ones that have no result yet.
    num_rows_left: int = 0


def find(conn: Connection, tenant_id: str) -> Overview:
    """Reads the open batches along their index, and no other."""
    left = func.sum(batches.c.total - batches.c.completed - batches.c.failed)
    query = (
        select(batches.c.status, func.count(), left)
        .where(
            batches.c.status.in_(OPEN),
            batches.c.tenant_id == tenant_id,
            batches.c.deleted_at.is_(None),
        )
        .group_by(batches.c.status)
    )
    found = {status: (int(count), int(rows)) for status, count, rows in conn.execute(query)}
    num_running, rows_left = found.pop(BatchStatus.IN_PROGRESS, (0, 0))
    num_validating, _ = found.pop(BatchStatus.VALIDATING, (0, 0))
    num_ending = sum(count for count, _ in found.values())
    return Overview(num_validating, num_running, num_ending, max(rows_left, 0))
