"""Schema 15: what each Shard needs of a machine, the Lane that it was sent to, its size class."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def upgrade() -> None:
    # Nothing is known of what Shards of earlier versions need: they fit everywhere.
    op.add_column("shards", sa.Column("size_class", sa.String, nullable=False, server_default=""))
    op.add_column("shards", _count("max_row_tokens"))
    op.add_column("shards", _count("least_row_tokens"))
    op.add_column("shards", sa.Column("lane", sa.String))
    op.create_index("shards_by_class", "shards", ["batch_id", "state", "size_class", "n"])
    op.create_table(
        "size_classes",
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("size_class", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("min_row_tokens", sa.BigInteger, nullable=False),
        sa.Column("max_row_tokens", sa.BigInteger, nullable=False),
        sa.Column("least_row_tokens", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO size_classes SELECT DISTINCT batch_id, '', tenant_id, 0, 0, 0 FROM shards "
        "WHERE state <> 'done'"
    )
