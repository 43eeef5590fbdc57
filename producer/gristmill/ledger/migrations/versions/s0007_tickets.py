"""Schema 7: tickets of control tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tickets",
        sa.Column("task", sa.String, primary_key=True),
        sa.Column("object_id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("word", sa.String, nullable=False),
        sa.Column("due_at", sa.BigInteger, nullable=False),
        sa.Column("num_rings", sa.Integer, nullable=False),
    )
