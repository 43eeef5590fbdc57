"""The table of the Workers: the newest beat of each. It serves no tenant, and names none."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from gristmill.ledger.schema import metadata

workers = Table(
    "workers",
    metadata,
    Column("worker_id", String, primary_key=True),
    # Of its beats, the newest that was heard; an older one never takes its place.
    Column("seq", BigInteger, nullable=False),
    Column("state", String, nullable=False),
    Column("first_heard_at", BigInteger, nullable=False),
    # By the clock of whoever heard it.
    Column("heard_at", BigInteger, nullable=False),
    # JSON, with the card.
    Column("beat", Text, nullable=False),
    Index("workers_by_age", "heard_at", "worker_id"),
)
