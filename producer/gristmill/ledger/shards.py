"""Queries about Shards: what waits, what is out with workers, which Jobs have their result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, RowMapping, func, insert, select, update

from gristmill.ledger import size_classes
from gristmill.ledger.schema import shards
from gristmill.queues.base import BULK_LANE

#: Shards of a batch that are looked at for those that some machine can run now.
_MAX_LOOKED_AT = 2000


class ShardState(StrEnum):
    WAITING = "waiting"
    SENT = "sent"
    DONE = "done"


class Bitmap:
    """One bit for each Job of a Shard."""

    def __init__(self, packed: bytes) -> None:
        self._bits = bytearray(packed)

    @classmethod
    def empty(cls, num_bits: int) -> Bitmap:
        return cls(bytes((num_bits + 7) // 8))

    def add(self, idx: int) -> bool:
        """Set a bit; False when it was set before."""
        byte, bit = idx >> 3, 1 << (idx & 7)
        if self._bits[byte] & bit:
            return False
        self._bits[byte] |= bit
        return True

    def to_bytes(self) -> bytes:
        return bytes(self._bits)


@dataclass(frozen=True, slots=True)
class ShardRow:
    """What the Ledger knows of a Shard; the Jobs themselves lie in the Store."""

    batch_id: str
    n: int
    tenant_id: str
    slice: int
    num_jobs: int
    num_rows: int
    num_prompt_tokens: int
    num_expected_tokens: int
    size_class: str
    max_row_tokens: int
    least_row_tokens: int
    state: ShardState
    lane: str | None
    accepted: bytes
    num_accepted: int
    sent_at: int | None
    ring_at: int | None
    num_rings: int
    has_lines: bool


@dataclass(frozen=True, slots=True)
class NewShard:
    """A Shard that ingest has written to the Store."""

    n: int
    num_jobs: int
    num_rows: int
    num_prompt_tokens: int
    #: With those that its Jobs are expected to answer.
    num_expected_tokens: int = 0
    #: What its rows need of a machine (needs.py).
    size_class: str = ""
    max_row_tokens: int = 0
    least_row_tokens: int = 0


def add(
    conn: Connection, tenant_id: str, batch_id: str, slice_n: int, new: Iterable[NewShard]
) -> None:
    """The Shards of one slice; they wait until the batch is in progress and it is their turn.

    In a transaction that has changed the batch.
    """
    new = list(new)
    rows = [
        {
            "batch_id": batch_id,
            "tenant_id": tenant_id,
            "slice": slice_n,
            "n": shard.n,
            "num_jobs": shard.num_jobs,
            "num_rows": shard.num_rows,
            "num_prompt_tokens": shard.num_prompt_tokens,
            "num_expected_tokens": shard.num_expected_tokens,
            "size_class": shard.size_class,
            "max_row_tokens": shard.max_row_tokens,
            "least_row_tokens": shard.least_row_tokens,
            "state": ShardState.WAITING,
            "accepted": Bitmap.empty(shard.num_jobs).to_bytes(),
        }
        for shard in new
    ]
    if rows:
        conn.execute(insert(shards), rows)
    size_classes.add(conn, tenant_id, batch_id, new)


def get(conn: Connection, tenant_id: str, batch_id: str, n: int) -> ShardRow | None:
    query = select(shards).where(*_of(tenant_id, batch_id), shards.c.n == n)
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else shard_from_row(row)


def list_slice(conn: Connection, tenant_id: str, batch_id: str, slice_n: int) -> list[ShardRow]:
    """The Shards of one slice, in the order in which ingest made them."""
    query = (
        select(shards)
        .where(*_of(tenant_id, batch_id), shards.c.slice == slice_n)
        .order_by(shards.c.n)
    )
    return [shard_from_row(row) for row in conn.execute(query).mappings()]


def count_by_slice(conn: Connection, tenant_id: str, batch_id: str, num_slices: int) -> list[int]:
    """How many Shards each slice has."""
    query = (
        select(shards.c.slice, func.count())
        .where(*_of(tenant_id, batch_id))
        .group_by(shards.c.slice)
    )
    counts = {slice_n: count for slice_n, count in conn.execute(query)}
    return [counts.get(slice_n, 0) for slice_n in range(num_slices)]


def list_waiting(
    conn: Connection,
    tenant_id: str,
    batch_id: str,
    limit: int,
    *,
    size_class: str | None = None,
    limits: tuple[int, int] | None = None,
) -> list[ShardRow]:
    """The next Shards of a batch to be sent, or of one of its size classes.

    With `limits` those of the next _MAX_LOOKED_AT with so many `max_row_tokens` and
    `least_row_tokens` at most.
    """
    query = (
        select(shards)
        .where(*_of(tenant_id, batch_id), shards.c.state == ShardState.WAITING)
        .order_by(shards.c.n)
    )
    if size_class is not None:
        query = query.where(shards.c.size_class == size_class)
    if limits is not None:
        next_ = query.limit(_MAX_LOOKED_AT).subquery()
        longest, least = next_.c.max_row_tokens, next_.c.least_row_tokens
        query = select(next_).where(longest <= limits[0], least <= limits[1]).order_by(next_.c.n)
    query = query.limit(limit)
    return [shard_from_row(row) for row in conn.execute(query).mappings()]


def list_sent(conn: Connection, tenant_id: str, batch_id: str) -> list[ShardRow]:
    """The Shards of a batch that are out with workers."""
    query = select(shards).where(*_of(tenant_id, batch_id), shards.c.state == ShardState.SENT)
    return [shard_from_row(row) for row in conn.execute(query).mappings()]


def list_due_to_ring(
    conn: Connection, tenant_id: str, batch_id: str, now: int, limit: int = 100
) -> list[ShardRow]:
    """Shards that were sent and not heard of since."""
    query = (
        select(shards)
        .where(
            *_of(tenant_id, batch_id),
            shards.c.state == ShardState.SENT,
            shards.c.ring_at <= now,
        )
        .order_by(shards.c.ring_at, shards.c.n)
        .limit(limit)
    )
    return [shard_from_row(row) for row in conn.execute(query).mappings()]


def all_done(conn: Connection, tenant_id: str, batch_id: str) -> bool:
    """Whether each Job of the batch has its result."""
    query = select(shards.c.n).where(*_of(tenant_id, batch_id), shards.c.state != ShardState.DONE)
    return conn.execute(query.limit(1)).first() is None


def mark_sent(
    conn: Connection, shard: ShardRow, *, now: int, ring_at: int, lane: str = BULK_LANE
) -> bool:
    """False when somebody else has sent the Shard."""
    statement = update(shards).where(
        *_of(shard.tenant_id, shard.batch_id),
        shards.c.n == shard.n,
        shards.c.state == ShardState.WAITING,
    )
    changed = conn.execute(
        statement.values(
            state=ShardState.SENT, lane=lane, sent_at=now, ring_at=ring_at, num_rings=0
        )
    )
    return changed.rowcount == 1


def mark_rung(conn: Connection, shard: ShardRow, *, ring_at: int) -> bool:
    """Rung again in vain once more. False when the Shard was heard of, or rung, meanwhile."""
    statement = update(shards).where(
        *_of(shard.tenant_id, shard.batch_id),
        shards.c.n == shard.n,
        shards.c.state == ShardState.SENT,
        shards.c.ring_at == shard.ring_at,
    )
    changed = conn.execute(statement.values(ring_at=ring_at, num_rings=shard.num_rings + 1))
    return changed.rowcount == 1


def recall(conn: Connection, tenant_id: str, batch_id: str) -> None:
    """Let all Shards that were sent wait again: for a queue that has forgotten its messages."""
    statement = update(shards).where(*_of(tenant_id, batch_id), shards.c.state == ShardState.SENT)
    conn.execute(statement.values(state=ShardState.WAITING, lane=None))


def record_accepted(
    conn: Connection, shard: ShardRow, accepted: Bitmap, *, num_new: int, ring_at: int
) -> None:
    """Results were accepted, in a transaction that holds the batch; the Shard is alive."""
    num_accepted = shard.num_accepted + num_new
    values: dict[str, object] = {"accepted": accepted.to_bytes(), "num_accepted": num_accepted}
    if num_accepted == shard.num_jobs:
        values["state"] = ShardState.DONE
    statement = update(shards).where(*_of(shard.tenant_id, shard.batch_id), shards.c.n == shard.n)
    conn.execute(statement.values(ring_at=ring_at, num_rings=0, **values))


def record_lines(conn: Connection, tenant_id: str, batch_id: str, n: int) -> None:
    """The lines of a Shard that is done lie in the Store."""
    statement = update(shards).where(*_of(tenant_id, batch_id), shards.c.n == n)
    conn.execute(statement.values(has_lines=True))


def _of(tenant_id: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
    return shards.c.tenant_id == tenant_id, shards.c.batch_id == batch_id


def shard_from_row(row: RowMapping) -> ShardRow:
    fields = dict(row)
    return ShardRow(state=ShardState(fields.pop("state")), **fields)
