"""Schema 8: the hash of each file, which its downloads are checked by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("files", sa.Column("sha256", sa.String))
