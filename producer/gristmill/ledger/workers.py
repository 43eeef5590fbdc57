"""Queries about the Workers: the newest beat of each, and when it was heard.

A beat may be lost, repeated or late: a newer one always wins, and nothing counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gristmill.fleet import (
    FORGET_AFTER_S,
    LOST_AFTER_S,
    KnownWorker,
    Pool,
    WorkerBeat,
    WorkerState,
    pool_of,
)
from gristmill.ledger.schema_fleet import workers
from gristmill.loading import has_loaded

#: Of Workers that have ended or are lost so many are kept at most, the newest: one that dies at
#: each start shall not fill the table within its day.
MAX_GONE = 10_000
#: Checked when they were heard; a fleet of thousands is read every few seconds.
_KEPT = msgspec.json.Decoder(WorkerBeat)


def put_beats(conn: Connection, beats: Iterable[WorkerBeat], *, now: int) -> int:
    """Keep the newest beat of each Worker, heard at `now`; how many were newer than what was known.

    Always in the order of the Workers, so that transactions do not wait for each other in a circle.
    """
    newest: dict[str, WorkerBeat] = {}
    for beat in beats:
        if beat.worker_id not in newest or beat.seq > newest[beat.worker_id].seq:
            newest[beat.worker_id] = beat
    return sum(put_beat(conn, newest[worker_id], now=now) for worker_id in sorted(newest))


def put_beat(conn: Connection, beat: WorkerBeat, *, now: int) -> bool:
    """Keep a beat that was heard at `now`; False when it is not newer than the one that is kept."""
    values = {
        "seq": beat.seq,
        "state": beat.state.value,
        "heard_at": now,
        "beat": msgspec.json.encode(beat).decode(),
    }
    of_worker = workers.c.worker_id == beat.worker_id
    if conn.execute(
        update(workers).where(of_worker, workers.c.seq < beat.seq).values(**values)
    ).rowcount:
        return True
    if is_known(conn, beat.worker_id):
        return False
    # Somebody else may be a moment faster; the next beat makes good for this one.
    with suppress(IntegrityError), conn.begin_nested():
        conn.execute(insert(workers).values(worker_id=beat.worker_id, first_heard_at=now, **values))
        return True
    return False


def is_known(conn: Connection, worker_id: str) -> bool:
    query = select(workers.c.seq).where(workers.c.worker_id == worker_id)
    return conn.execute(query).first() is not None


def list_workers(
    conn: Connection, *, limit: int | None = None, after_id: str = "", with_ended: bool = True
) -> list[KnownWorker]:
    """By id, those behind `after_id`; also those that are lost."""
    query = select(workers).where(workers.c.worker_id > after_id).order_by(workers.c.worker_id)
    if not with_ended:
        query = query.where(workers.c.state != WorkerState.ENDED.value)
    return list(_read(conn, query.limit(limit)))


def list_alive(conn: Connection, now: float) -> list[KnownWorker]:
    """Those that load, work or drain, by id."""
    # As KnownWorker.is_alive_at has it.
    query = select(workers).where(
        workers.c.heard_at >= now - LOST_AFTER_S, workers.c.state != WorkerState.ENDED.value
    )
    return list(_read(conn, query.order_by(workers.c.worker_id)))


def forget_old(conn: Connection, *, now: int) -> list[KnownWorker]:
    """Remove Workers that were not heard of for a day, and gone ones beyond MAX_GONE: those.

    Within the day one stays that tells what its pool takes, and no other does.
    """
    is_gone = or_(
        workers.c.state == WorkerState.ENDED.value, workers.c.heard_at < now - LOST_AFTER_S
    )
    too_many = conn.execute(
        select(workers.c.heard_at)
        .where(is_gone)
        .order_by(workers.c.heard_at.desc())
        .offset(MAX_GONE)
        .limit(1)
    ).scalar()
    is_old = workers.c.heard_at < now - FORGET_AFTER_S
    if too_many is not None:
        is_old = or_(is_old, is_gone & (workers.c.heard_at <= too_many))
    forgotten = {
        known.card.worker_id: known for known in _read(conn, select(workers).where(is_old))
    }
    kept = [] if too_many is None else _find_telling(conn, forgotten, now - FORGET_AFTER_S)
    conn.execute(delete(workers).where(is_old, workers.c.worker_id.not_in(kept)))
    return [known for worker_id, known in forgotten.items() if worker_id not in kept]


def _find_telling(
    conn: Connection, forgotten: Mapping[str, KnownWorker], heard_since: float
) -> list[str]:
    """Those without whom a pool would be forgotten, or that it takes so long rows."""
    most: dict[Pool, int] = {}
    found = []
    those = sorted(list_workers(conn), key=lambda known: -known.heard_at)
    for known in sorted(those, key=lambda known: known.card.worker_id in forgotten):
        pool, row_tokens = pool_of(known.card), known.card.max_row_tokens
        if not has_loaded(known) or row_tokens <= most.get(pool, 0):
            continue
        most[pool] = row_tokens
        if known.card.worker_id in forgotten and known.heard_at >= heard_since:
            found.append(known.card.worker_id)
    return found


def _read(conn: Connection, query: Select[Any]) -> Iterator[KnownWorker]:
    for row in conn.execute(query):
        known = _known(row)
        if known is not None:
            yield known


def _known(row: Row[Any]) -> KnownWorker | None:
    """None for a beat that another version of Gristmill has written, which knows more."""
    try:
        beat = _KEPT.decode(row.beat)
    except msgspec.DecodeError:
        return None
    return KnownWorker(beat, row.first_heard_at, row.heard_at)
