"""Sessions of the dashboard that somebody logged out of."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from gristmill.ledger.oldest import remove_oldest
from gristmill.ledger.schema_sessions import ended_sessions


def end_session(conn: Connection, nonce: str, *, forget_at: int) -> None:
    """From now on the session is over, whoever holds a copy of its cookie."""
    with suppress(IntegrityError), conn.begin_nested():  # it was ended a moment ago
        conn.execute(insert(ended_sessions).values(nonce=nonce, forget_at=forget_at))


def has_ended(conn: Connection, nonce: str) -> bool:
    found = select(ended_sessions.c.nonce).where(ended_sessions.c.nonce == nonce)
    return conn.execute(found).first() is not None


def forget_ended(conn: Connection, *, now: int, limit: int) -> int:
    """Of all tenants, those that would be over by now anyway; how many."""
    age = ended_sessions.c.forget_at
    return remove_oldest(conn, ended_sessions, age, before=now, limit=limit)
