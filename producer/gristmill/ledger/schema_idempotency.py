"""The table of requests that were named by their sender, so that the same one makes nothing twice.

Batches have their name in a column of their own, for as long as they are there.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table

from gristmill.ledger.schema import metadata

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant_id", String, primary_key=True),
    # A kind of thing and what stood in the header `Idempotency-Key`; without one, what was asked.
    Column("key", String, primary_key=True),
    # Of all that was asked for, in hex: another request with this key is refused.
    Column("request_digest", String, nullable=False),
    # What was made.
    Column("object_id", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("idempotency_keys_by_age", "created_at"),
)
