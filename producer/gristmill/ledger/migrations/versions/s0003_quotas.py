"""Schema 3: quotas of tenants, usage by day, the audit log, estimates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COUNTS = ("completed", "failed", "prompt_tokens", "completion_tokens", "cached_tokens")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _time(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String, nullable=nullable)


def upgrade() -> None:
    op.add_column("tenants", sa.Column("quotas", sa.JSON(none_as_null=True)))
    op.add_column("tenants", _time("request_window"))
    op.add_column("tenants", _time("requests_granted"))
    op.create_table(
        "usage",
        sa.Column("tenant_id", sa.String, primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("model", sa.String, primary_key=True),
        *map(_count, _COUNTS),
    )
    op.create_index("usage_by_day", "usage", ["day", "tenant_id"])
    op.create_index("usage_by_model", "usage", ["model", "day"])
    # What was accepted before it was counted by day: on the day on which the batch was last seen.
    last_seen = "coalesce(completed_at, expired_at, cancelled_at, in_progress_at, created_at)"
    op.execute(
        f"INSERT INTO usage (tenant_id, day, batch_id, model, {', '.join(_COUNTS)}) "
        f"SELECT tenant_id, {last_seen} / 86400, id, model_name, completed, "
        # Rows that never ran were added when the batch ended.
        "CASE WHEN expired_at IS NULL AND cancelled_at IS NULL THEN failed ELSE 0 END, "
        "prompt_tokens, completion_tokens, cached_tokens "
        "FROM batches WHERE in_progress_at IS NOT NULL AND completed + failed > 0"
    )
    op.create_table(
        "audit_events",
        sa.Column("id", sa.String, primary_key=True),
        *map(_text, ("tenant_id", "action", "object_id")),
        *(_text(name, nullable=True) for name in ("key_id", "address", "request_id")),
        sa.Column("details", sa.JSON(none_as_null=True)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("audit_events_by_tenant", "audit_events", ["tenant_id", "created_at", "id"])
    op.create_index("audit_events_by_age", "audit_events", ["created_at", "id"])
    op.create_table(
        "estimates",
        sa.Column("id", sa.String, primary_key=True),
        *map(_text, ("tenant_id", "status", "input_file_id", "endpoint", "model_name")),
        *map(_count, ("byte_offset", "line_no", "num_rows", "num_refused")),
        *map(_count, ("prompt_tokens", "max_output_tokens", "num_problems", "due_at")),
        sa.Column("problems", sa.JSON, nullable=False),
        sa.Column("forecast", sa.JSON(none_as_null=True)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        _time("completed_at"),
        _time("expires_at"),
    )
    op.create_index("estimates_by_status", "estimates", ["status", "created_at"])
    op.create_index("estimates_by_tenant", "estimates", ["tenant_id", "created_at", "id"])
