"""The table of sessions of the dashboard that were ended before their time."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table

from gristmill.ledger.schema import metadata

# Others need no row: what their browser holds says when they end. No tenant: a row is looked for
# before it is known whose session it was, it only ever refuses, and nothing is told of it.
ended_sessions = Table(
    "ended_sessions",
    metadata,
    # The random part of what the browser holds; nobody gets in with it alone.
    Column("nonce", String, primary_key=True),
    # The session would be over by then, and the row is not needed any more.
    Column("forget_at", BigInteger, nullable=False),
    Index("ended_sessions_by_age", "forget_at"),
)
