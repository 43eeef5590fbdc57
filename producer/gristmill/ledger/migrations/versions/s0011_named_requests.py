"""Schema 11: requests that were named by their sender.

And the secrets of webhooks may be sealed, which versions before this one cannot open.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String, primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("request_digest", sa.String, nullable=False),
        sa.Column("object_id", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("idempotency_keys_by_age", "idempotency_keys", ["created_at"])
