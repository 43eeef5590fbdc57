"""Schema 4: webhook endpoints, events, deliveries and attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("batch_id", sa.String),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("event_types", sa.JSON, nullable=False),
        sa.Column("secret", sa.String, nullable=False),
        sa.Column("old_secret", sa.String),
        sa.Column("old_secret_until", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("disabled_at", sa.BigInteger),
        sa.Column("disabled_reason", sa.String),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("num_failures", sa.Integer, nullable=False),
        sa.Column("failing_since", sa.BigInteger),
        sa.Column("retry_at", sa.BigInteger),
        sa.Column("last_success_at", sa.BigInteger),
    )
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("batch_id", sa.String, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("event_id", sa.String, nullable=False),
        sa.Column("endpoint_id", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("num_failures", sa.Integer, nullable=False),
        sa.Column("num_attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger, nullable=False),
        sa.Column("claimed_until", sa.BigInteger, nullable=False),
        sa.Column("delivered_at", sa.BigInteger),
    )
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.String, primary_key=True),
        sa.Column("n", sa.Integer, primary_key=True),
        sa.Column("tenant_id", sa.String, nullable=False),
        sa.Column("attempted_at", sa.BigInteger, nullable=False),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.Column("status_code", sa.Integer),
        sa.Column("error", sa.String),
        sa.Column("response_body", sa.Text),
    )
    for name, table, columns in (
        ("webhook_endpoints_by_tenant", "webhook_endpoints", ["tenant_id", "created_at", "id"]),
        ("webhook_endpoints_by_batch", "webhook_endpoints", ["tenant_id", "batch_id"]),
        ("webhook_events_by_tenant", "webhook_events", ["tenant_id", "created_at", "id"]),
        ("webhook_events_by_batch", "webhook_events", ["tenant_id", "batch_id"]),
        ("webhook_events_by_age", "webhook_events", ["created_at"]),
        (
            "webhook_deliveries_by_endpoint",
            "webhook_deliveries",
            ["endpoint_id", "created_at", "id"],
        ),
        ("webhook_deliveries_by_due", "webhook_deliveries", ["state", "next_attempt_at"]),
    ):
        op.create_index(name, table, columns)
    op.create_index(
        "webhook_deliveries_by_event",
        "webhook_deliveries",
        ["event_id", "endpoint_id"],
        unique=True,
    )
