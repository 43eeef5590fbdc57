"""Schema 12: how a batch went over time, and the kinds of its failures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "courses",
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("begins_at", sa.BigInteger, nullable=False),
        sa.Column("width_s", sa.BigInteger, nullable=False),
        sa.Column("points", sa.JSON, nullable=False),
        sa.Column("failures", sa.JSON, nullable=False),
    )
