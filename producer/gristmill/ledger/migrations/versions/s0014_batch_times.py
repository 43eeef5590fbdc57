"""Schema 14: where the time of each batch's rows went."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("times", sa.JSON))
