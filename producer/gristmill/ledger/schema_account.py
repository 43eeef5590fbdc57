"""The tables by which tenants are told what they used and did: usage, audit log, estimates."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, String, Table

from gristmill.ledger.schema import metadata


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, default=0)


# What was accepted, by day (whole days since 1970, UTC). It outlives the batch.
usage = Table(
    "usage",
    metadata,
    Column("tenant_id", String, primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("batch_id", String, primary_key=True),
    Column("model", String, primary_key=True),
    # Rows
    _count("completed"),
    _count("failed"),
    # Tokens
    _count("prompt_tokens"),
    _count("completion_tokens"),
    _count("cached_tokens"),
    Index("usage_by_day", "day", "tenant_id"),
    Index("usage_by_model", "model", "day"),
)

# Who changed what. Nothing in it is a secret, and nothing of it is ever changed.
audit_events = Table(
    "audit_events",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("action", String, nullable=False),
    Column("object_id", String, nullable=False),
    # Null for what an operator did on the command line.
    Column("key_id", String),
    Column("address", String),
    Column("request_id", String),
    Column("details", JSON(none_as_null=True)),
    Column("created_at", BigInteger, nullable=False),
    Index("audit_events_by_tenant", "tenant_id", "created_at", "id"),
    Index("audit_events_by_age", "created_at", "id"),
)

estimates = Table(
    "estimates",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("input_file_id", String, nullable=False),
    Column("endpoint", String, nullable=False),
    # Empty until the first line was read.
    Column("model_name", String, nullable=False),
    # Where reading goes on; rows and tokens are those of the lines before it.
    _count("byte_offset"),
    _count("line_no"),
    _count("num_rows"),
    _count("num_refused"),
    _count("prompt_tokens"),
    _count("max_output_tokens"),
    _count("num_problems"),
    # Nobody else reads on before: whoever reads says so here.
    _count("due_at"),
    Column("problems", JSON, nullable=False),
    Column("forecast", JSON(none_as_null=True)),
    Column("created_at", BigInteger, nullable=False),
    Column("completed_at", BigInteger),
    Column("expires_at", BigInteger),
    Index("estimates_by_status", "status", "created_at"),
    Index("estimates_by_tenant", "tenant_id", "created_at", "id"),
)
