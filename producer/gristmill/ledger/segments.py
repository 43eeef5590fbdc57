"""Queries about accepted Segments: which they are, and in which order they were accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, insert, or_, select

from gristmill.ledger.schema import segments
from gristmill.types import Bell

#: Of a Segment that an earlier version accepted.
NO_TRAIL = "0"


def trail_at(conn: Connection, tenant_id: str, batch_id: str, number: int) -> str | None:
    """Stands for the Segments 1 to `number` in their order: others would have another trail.

    None when no Segment has this number.
    """
    query = select(segments.c.trail).where(
        segments.c.tenant_id == tenant_id,
        segments.c.batch_id == batch_id,
        segments.c.number == number,
    )
    row = conn.execute(query).one_or_none()
    return None if row is None else row.trail or NO_TRAIL


def trail_behind(trail: str, bell: Bell) -> str:
    """Of one Segment more."""
    link = f"{trail} {bell.shard_n} {bell.attempt_id} {bell.seq}"
    return hashlib.sha256(link.encode()).hexdigest()[:12]


def add(
    conn: Connection,
    bell: Bell,
    *,
    number: int,
    num_results: int,
    num_counted: int | None = None,
    trail: str | None = None,
) -> None:
    """Segment `number` of the batch, in a transaction that holds the batch.

    `num_counted` of its results are the first ones of their Jobs; None says that it is not known.
    """
    conn.execute(
        insert(segments).values(
            batch_id=bell.batch_id,
            number=number,
            tenant_id=bell.tenant_id,
            shard_n=bell.shard_n,
            attempt_id=bell.attempt_id,
            seq=bell.seq,
            num_results=num_results,
            num_counted=num_counted,
            trail=trail,
        )
    )


def is_known(conn: Connection, bell: Bell) -> bool:
    """Whether this Segment was accepted."""
    query = select(segments.c.number).where(
        segments.c.tenant_id == bell.tenant_id,
        segments.c.batch_id == bell.batch_id,
        segments.c.shard_n == bell.shard_n,
        segments.c.attempt_id == bell.attempt_id,
        segments.c.seq == bell.seq,
    )
    return conn.execute(query).first() is not None


def list_with_results(
    conn: Connection, tenant_id: str, batch_id: str, run_id: str, shard_n: int
) -> list[Bell]:
    """Those Segments of a Shard that hold results, in the order of their acceptance."""
    query = (
        select(segments.c.attempt_id, segments.c.seq)
        .where(
            segments.c.tenant_id == tenant_id,
            segments.c.batch_id == batch_id,
            segments.c.shard_n == shard_n,
            segments.c.num_results > 0,
        )
        .order_by(segments.c.number)
    )
    return [
        Bell(tenant_id, batch_id, run_id, shard_n, attempt_id, seq)
        for attempt_id, seq in conn.execute(query)
    ]


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted Segment. `all_count`: no Job of it had its result from an earlier one."""

    number: int
    shard_n: int
    attempt_id: str
    seq: int
    all_count: bool
    trail: str


def list_accepted(
    conn: Connection, tenant_id: str, batch_id: str, *, after_number: int, limit: int
) -> list[Accepted]:
    """The next accepted Segments that hold results that count, by number."""
    query = (
        select(segments)
        .where(
            segments.c.tenant_id == tenant_id,
            segments.c.batch_id == batch_id,
            segments.c.number > after_number,
            segments.c.num_results > 0,
            or_(segments.c.num_counted.is_(None), segments.c.num_counted > 0),
        )
        .order_by(segments.c.number)
        .limit(limit)
    )
    return [
        Accepted(
            row.number,
            row.shard_n,
            row.attempt_id,
            row.seq,
            row.num_counted == row.num_results,
            row.trail or NO_TRAIL,
        )
        for row in conn.execute(query)
    ]


def list_earlier(
    conn: Connection, tenant_id: str, batch_id: str, run_id: str, of: Accepted
) -> list[Bell]:
    """The Segments with results of the same Shard that were accepted before this one."""
    query = (
        select(segments.c.attempt_id, segments.c.seq)
        .where(
            segments.c.tenant_id == tenant_id,
            segments.c.batch_id == batch_id,
            segments.c.shard_n == of.shard_n,
            segments.c.number < of.number,
            segments.c.num_results > 0,
        )
        .order_by(segments.c.number)
    )
    return [
        Bell(tenant_id, batch_id, run_id, of.shard_n, attempt_id, seq)
        for attempt_id, seq in conn.execute(query)
    ]


def stream_all(
    conn: Connection, tenant_id: str, batch_id: str
) -> Iterator[tuple[int, int, str, int]]:
    """(number, Shard, attempt id, seq) of all accepted Segments, by number, without a list."""
    query = (
        select(segments.c.number, segments.c.shard_n, segments.c.attempt_id, segments.c.seq)
        .where(segments.c.tenant_id == tenant_id, segments.c.batch_id == batch_id)
        .order_by(segments.c.number)
    )
    for row in conn.execution_options(yield_per=1000).execute(query):
        yield row.number, row.shard_n, row.attempt_id, row.seq
