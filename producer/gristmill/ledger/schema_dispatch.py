"""The tables that dispatch decides by: Lanes, the tenants' shares of them, how fast they work."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, String, Table

from gristmill.ledger.schema import metadata

# Held by whoever dispatches on the Lane, so that two of them do it one after the other.
lanes = Table(
    "lanes",
    metadata,
    Column("lane", String, primary_key=True),
    # Where a tenant stands that begins just now; see control/fair_share.py.
    Column("level", BigInteger, nullable=False),
    # Shards sent for their deadline since one was sent for its tenant's share.
    Column("num_urgent", Integer, nullable=False),
    # Work that is due until then goes in the order of deadlines; null when nothing is urgent.
    Column("urgent_until", BigInteger),
    Column("looked_at", BigInteger, nullable=False),
)

shares = Table(
    "shares",
    metadata,
    Column("lane", String, primary_key=True),
    Column("tenant_id", String, primary_key=True),
    # Tokens finished, on the scale of the Lane's level.
    Column("num_tokens", BigInteger, nullable=False),
)

# The size classes of a batch's Shards, and the longest rows of each: what dispatch routes, without
# a look at the Shards themselves.
size_classes = Table(
    "size_classes",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("size_class", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    # Of the Shard whose longest row is the shortest, and of that whose is the longest.
    Column("min_row_tokens", BigInteger, nullable=False),
    Column("max_row_tokens", BigInteger, nullable=False),
    Column("least_row_tokens", BigInteger, nullable=False),
)

# What the workers of a model accomplish while they work: sums in which the past fades.
paces = Table(
    "paces",
    metadata,
    Column("lane", String, primary_key=True),
    Column("model_name", String, primary_key=True),
    Column("num_tokens", Float, nullable=False),
    Column("busy_s", Float, nullable=False),
    # When a Segment was last accepted, in seconds.
    Column("heard_at", Float, nullable=False),
)
