"""Schema 16: whether the lines of a Shard lie in the Store, for its slice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "shards", sa.Column("has_lines", sa.Boolean, nullable=False, server_default=sa.false())
    )
