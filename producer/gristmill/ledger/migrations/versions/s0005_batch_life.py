"""Schema 5: batches that are run again or deleted, when their work is removed; chores."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

#: A batch that had ended before keeps its Shards and Segments for so long.
_WORK_LIFETIME_S = 7 * 24 * 3600


def upgrade() -> None:
    for column in (
        sa.Column("retry_of", sa.String),
        sa.Column("retry_file_id", sa.String),
        sa.Column("remove_work_at", sa.BigInteger),
        sa.Column("deleted_at", sa.BigInteger),
    ):
        op.add_column("batches", column)
    op.create_index("batches_by_retry", "batches", ["tenant_id", "retry_of"])
    op.create_index("batches_by_removal", "batches", ["remove_work_at"])
    op.execute(
        "UPDATE batches SET remove_work_at = "
        "COALESCE(completed_at, failed_at, expired_at, cancelled_at) + "
        f"{_WORK_LIFETIME_S} WHERE input_file_id IS NOT NULL"
    )
    op.create_table(
        "chores",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("due_at", sa.BigInteger, nullable=False),
    )
