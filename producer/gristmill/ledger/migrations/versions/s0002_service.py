"""Schema 2: tenants, API keys and models; what callers ask of a batch; files that expire."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in (
        sa.Column("input_file_id", sa.String),
        sa.Column("completion_window", sa.String),
        sa.Column("metadata", sa.JSON(none_as_null=True)),
        sa.Column("output_expires_after_s", sa.BigInteger),
        sa.Column("idempotency_key", sa.String),
        sa.Column("request_digest", sa.String),
    ):
        op.add_column("batches", column)
    op.create_index("batches_by_tenant", "batches", ["tenant_id", "created_at", "id"])
    op.create_index("batches_by_input_file", "batches", ["tenant_id", "input_file_id"])
    op.create_index(
        "batches_by_idempotency_key", "batches", ["tenant_id", "idempotency_key"], unique=True
    )
    op.add_column("segments", sa.Column("num_counted", sa.Integer))
    op.add_column("files", sa.Column("expires_at", sa.BigInteger))
    op.add_column("files", sa.Column("deleted_at", sa.BigInteger))
    op.create_index("files_by_tenant", "files", ["tenant_id", "created_at", "id"])
    op.create_index("files_by_expiry", "files", ["expires_at"])
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.String, primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
        sa.Column("last_used_at", sa.BigInteger),
    )
    op.create_index("api_keys_by_tenant", "api_keys", ["tenant_id", "created_at", "id"])
    op.create_table(
        "models",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("revision", sa.String, nullable=False),
        sa.Column("served_names", sa.JSON, nullable=False),
        sa.Column("max_model_len", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
    )
