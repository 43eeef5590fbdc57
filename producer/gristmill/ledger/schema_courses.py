"""The table of what became of each batch over time: for people who look at it, never for control.

One row a batch, of bounded size.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, String, Table

from gristmill.ledger.schema import metadata

courses = Table(
    "courses",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    # The first point begins then, and each lasts so many seconds; see courses.py.
    Column("begins_at", BigInteger, nullable=False),
    Column("width_s", BigInteger, nullable=False),
    Column("points", JSON, nullable=False),
    # Rows that failed, by the code of their error.
    Column("failures", JSON, nullable=False),
)
