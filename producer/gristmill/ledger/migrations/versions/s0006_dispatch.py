"""Schema 6: what dispatch decides by; priority, budget and expected tokens of batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

#: As ledger/batches.py has it: a batch that is never due.
_NEVER = 2**62


def _count(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=str(default))


def upgrade() -> None:
    for column in (
        sa.Column("rank", sa.Integer, nullable=False, server_default="0"),
        _count("due_at", _NEVER),
        _count("expected_tokens"),
        sa.Column("max_total_tokens", sa.BigInteger),
        sa.Column("max_cost", sa.String),
        sa.Column("budget_used_at", sa.BigInteger),
    ):
        op.add_column("batches", column)
    op.add_column("shards", _count("num_expected_tokens"))
    op.execute("UPDATE batches SET due_at = expires_at WHERE expires_at IS NOT NULL")
    # What a Shard would answer was not estimated before.
    op.execute("UPDATE shards SET num_expected_tokens = num_prompt_tokens")
    op.execute(
        "UPDATE batches SET expected_tokens = COALESCE((SELECT SUM(num_prompt_tokens) FROM shards "
        "WHERE shards.batch_id = batches.id), 0)"
    )
    op.create_index(
        "batches_by_turn",
        "batches",
        ["status", "tenant_id", "rank", "due_at", "created_at", "id"],
    )
    op.create_index("batches_by_due", "batches", ["status", "due_at", "id"])
    op.create_table(
        "lanes",
        sa.Column("lane", sa.String, primary_key=True),
        sa.Column("level", sa.BigInteger, nullable=False),
        sa.Column("num_urgent", sa.Integer, nullable=False),
        sa.Column("urgent_until", sa.BigInteger),
        sa.Column("looked_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "shares",
        sa.Column("lane", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, primary_key=True),
        sa.Column("num_tokens", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "paces",
        sa.Column("lane", sa.String, primary_key=True),
        sa.Column("model_name", sa.String, primary_key=True),
        sa.Column("num_tokens", sa.Float, nullable=False),
        sa.Column("busy_s", sa.Float, nullable=False),
        sa.Column("heard_at", sa.Float, nullable=False),
    )
