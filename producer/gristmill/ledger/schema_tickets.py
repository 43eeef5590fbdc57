"""The table of tickets: which message of a control task counts. Not used without a broker."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, String, Table

from gristmill.ledger.schema import metadata

# At most one for each task of a batch or an estimate, which is the object. See ledger/tickets.py.
tickets = Table(
    "tickets",
    metadata,
    Column("task", String, primary_key=True),
    Column("object_id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    # What the message carries; another word as soon as somebody works on it.
    Column("word", String, nullable=False),
    # Nobody rings again before.
    Column("due_at", BigInteger, nullable=False),
    # How often it was rung since the task last got on.
    Column("num_rings", Integer, nullable=False),
)
