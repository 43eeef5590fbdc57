"""Schema 17: sessions of the dashboard that were ended before their time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ended_sessions",
        sa.Column("nonce", sa.String, primary_key=True),
        sa.Column("forget_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ended_sessions_by_age", "ended_sessions", ["forget_at"])
