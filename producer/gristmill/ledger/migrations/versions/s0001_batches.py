"""Schema 1: batches, Shards, Segments and files, as `gristmill run` needs them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _times(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger) for name in names]


def _texts(*names: str, nullable: bool = False) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String, nullable=nullable) for name in names]


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String, primary_key=True),
        *_texts("tenant_id", "status"),
        *_texts("endpoint", nullable=True),
        *_texts("model_name", "model_revision", "tokenizer_hash", "dtype", "seed"),
        *_texts("input_fingerprint"),
        sa.Column("options", sa.JSON, nullable=False),
        *_texts("run_id"),
        *map(_count, ("ingest_byte_offset", "ingest_line_no", "ingest_row_idx")),
        *map(_count, ("num_slices", "num_shards", "total", "completed", "failed")),
        *map(_count, ("prompt_tokens", "completion_tokens", "cached_tokens")),
        sa.Column("ttft", sa.JSON, nullable=False),
        sa.Column("itl", sa.JSON, nullable=False),
        _count("last_accepted"),
        sa.Column("errors", sa.JSON, nullable=False),
        _count("num_errors"),
        *_texts("freeze_reason", nullable=True),
        *map(_count, ("merged_slices", "num_output_lines", "num_error_lines")),
        *_texts("output_file_id", "error_file_id", nullable=True),
        _count("created_at"),
        *_times("expires_at", "in_progress_at", "finalizing_at", "completed_at", "failed_at"),
        *_times("expired_at", "cancelling_at", "cancelled_at"),
    )
    op.create_index("batches_by_status", "batches", ["status", "id"])
    op.create_table(
        "shards",
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("n", sa.Integer, primary_key=True),
        *_texts("tenant_id"),
        sa.Column("slice", sa.Integer, nullable=False),
        sa.Column("num_jobs", sa.Integer, nullable=False),
        sa.Column("num_rows", sa.Integer, nullable=False),
        _count("num_prompt_tokens"),
        *_texts("state"),
        sa.Column("accepted", sa.LargeBinary, nullable=False),
        _count("num_accepted"),
        *_times("sent_at", "ring_at"),
        _count("num_rings"),
    )
    op.create_index("shards_by_slice", "shards", ["batch_id", "slice", "n"])
    op.create_index("shards_by_state", "shards", ["state", "batch_id", "n"])
    op.create_table(
        "segments",
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        *_texts("tenant_id"),
        sa.Column("shard_n", sa.Integer, nullable=False),
        *_texts("attempt_id"),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("num_results", sa.Integer, nullable=False),
        sa.UniqueConstraint("batch_id", "shard_n", "attempt_id", "seq"),
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String, primary_key=True),
        *_texts("tenant_id", "purpose", "filename"),
        _count("num_bytes"),
        _count("created_at"),
    )
