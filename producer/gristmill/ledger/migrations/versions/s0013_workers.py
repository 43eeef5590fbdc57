"""Schema 13: the Workers that announce themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("worker_id", sa.String, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("first_heard_at", sa.BigInteger, nullable=False),
        sa.Column("heard_at", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.Text, nullable=False),
    )
    op.create_index("workers_by_age", "workers", ["heard_at", "worker_id"])
