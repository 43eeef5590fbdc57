"""Schema 10: what was accepted up to each Segment, and in which order; when a batch began to run.

And the URL that a batch was asked for with, and when a secret was rotated.
"""

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
    op.add_column("webhook_endpoints", sa.Column("asked_url", sa.String))
    op.add_column("webhook_endpoints", sa.Column("secret_rotated_at", sa.BigInteger))
    op.execute("UPDATE webhook_endpoints SET asked_url = url WHERE batch_id IS NOT NULL")
