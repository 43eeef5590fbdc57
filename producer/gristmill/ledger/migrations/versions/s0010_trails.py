"""Schema 10: what was accepted up to each Segment, in which order; when a batch began to run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("segments", sa.Column("trail", sa.String))
    op.add_column("batches", sa.Column("first_sent_at", sa.BigInteger))
