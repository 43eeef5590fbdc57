"""Queries about how much is accomplished: for each tenant, and by the workers of each model.

They are written with each acceptance, after all else of its transaction, always in this order, so
that transactions that wait for each other do not do so in a circle.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from gristmill.ledger.batch import Batch
from gristmill.ledger.schema_dispatch import paces, shares
from gristmill.queues.base import BULK_LANE

#: What was accomplished so many seconds of work ago counts half.
HALF_LIFE_S = 120.0
#: Workers that hold something store a Segment more often; after a longer gap they were idle.
MAX_GAP_S = 45.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Of the workers of one model, all together, while they work."""

    model_name: str
    tokens_per_s: float | None
    #: When something of them was last accepted, in Unix seconds.
    heard_at: float


def add_finished(conn: Connection, batch: Batch, *, num_tokens: int) -> None:
    """So many tokens more were finished for the tenant of the batch."""
    if num_tokens:
        of_tenant = (shares.c.lane == BULK_LANE, shares.c.tenant_id == batch.tenant_id)
        conn.execute(
            update(shares).where(*of_tenant).values(num_tokens=shares.c.num_tokens + num_tokens)
        )


def record(conn: Connection, batch: Batch, *, num_tokens: int, now_s: float) -> None:
    """Workers of the batch's model have just finished so many tokens."""
    key = {"lane": BULK_LANE, "model_name": batch.model.name}
    of_model = (paces.c.lane == BULK_LANE, paces.c.model_name == batch.model.name)
    found = conn.execute(select(paces).where(*of_model).with_for_update()).one_or_none()
    if found is None:
        # The first acceptance begins the measurement. Somebody else may be a moment faster.
        with suppress(IntegrityError), conn.begin_nested():
            conn.execute(insert(paces).values(**key, num_tokens=0.0, busy_s=0.0, heard_at=now_s))
        return
    values = {"heard_at": max(now_s, found.heard_at)}
    busy_s = now_s - found.heard_at
    if 0 <= busy_s <= MAX_GAP_S:  # else nobody knows when this work began
        fade = math.pow(0.5, busy_s / HALF_LIFE_S)
        values["num_tokens"] = found.num_tokens * fade + num_tokens
        values["busy_s"] = found.busy_s * fade + busy_s
    conn.execute(update(paces).where(*of_model).values(**values))


def list_paces(conn: Connection, lane: str) -> list[Pace]:
    """Of all models that were ever worked for on the Lane."""
    rows = conn.execute(select(paces).where(paces.c.lane == lane).order_by(paces.c.model_name))
    return [
        Pace(row.model_name, row.num_tokens / row.busy_s if row.busy_s >= 1 else None, row.heard_at)
        for row in rows
    ]
