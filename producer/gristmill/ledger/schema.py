"""The tables of the Ledger. Times are integer Unix seconds, ids are text, JSON is text.

Every table but `models`, `workers`, `chores`, `lanes`, `paces` and `ended_sessions` has
`tenant_id`. The statements written against them run on SQLite and PostgreSQL.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData()


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, default=0)


def _time(name: str) -> Column[int]:
    return Column(name, BigInteger)


batches = Table(
    "batches",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("endpoint", String),
    Column("model_name", String, nullable=False),
    Column("model_revision", String, nullable=False),
    Column("tokenizer_hash", String, nullable=False),
    Column("dtype", String, nullable=False),
    Column("seed", String, nullable=False),
    Column("input_fingerprint", String, nullable=False),
    # What the caller of the API asked for; all null in a batch of `gristmill run`.
    Column("input_file_id", String),
    Column("completion_window", String),
    Column("metadata", JSON(none_as_null=True)),
    Column("output_expires_after_s", BigInteger),
    Column("idempotency_key", String),
    Column("request_digest", String),
    Column("max_total_tokens", BigInteger),
    # An exact number, as text.
    Column("max_cost", String),
    # The batch whose rows without an answer this one runs, and the file that names them.
    Column("retry_of", String),
    Column("retry_file_id", String),
    # The settings and names that decide what the rows' answers are.
    Column("options", JSON, nullable=False),
    # The run that ingest makes; it counts as soon as the batch is in progress.
    Column("run_id", String, nullable=False),
    # Where ingest goes on, and the numbers of its next slice and Shard.
    _count("ingest_byte_offset"),
    _count("ingest_line_no"),
    _count("ingest_row_idx"),
    _count("num_slices"),
    _count("num_shards"),
    # Of all its Shards
    _count("expected_tokens"),
    # Its turn among the batches of its tenant: the least rank first, then what is due first.
    Column("rank", Integer, nullable=False, default=0),
    Column("due_at", BigInteger, nullable=False),
    # Rows
    _count("total"),
    _count("completed"),
    _count("failed"),
    # Tokens of the rows that count
    _count("prompt_tokens"),
    _count("completion_tokens"),
    _count("cached_tokens"),
    Column("ttft", JSON, nullable=False),
    Column("itl", JSON, nullable=False),
    # Where the time of its rows went; null before the first, and in an earlier schema than 14.
    Column("times", JSON(none_as_null=True)),
    # The acceptance number of the newest accepted Segment.
    _count("last_accepted"),
    # When the answers were found to have used up the budget.
    _time("budget_used_at"),
    Column("errors", JSON, nullable=False),
    _count("num_errors"),
    Column("freeze_reason", String),
    # How far finalize is: slices merged, and the lines in their pieces.
    _count("merged_slices"),
    _count("num_output_lines"),
    _count("num_error_lines"),
    Column("output_file_id", String),
    Column("error_file_id", String),
    Column("created_at", BigInteger, nullable=False),
    _time("expires_at"),
    _time("in_progress_at"),
    # When the first of its Shards was; known once it is frozen.
    _time("first_sent_at"),
    _time("finalizing_at"),
    _time("completed_at"),
    _time("failed_at"),
    _time("expired_at"),
    _time("cancelling_at"),
    _time("cancelled_at"),
    # When Shards and Segments of an ended batch are removed; null when there are none any more.
    _time("remove_work_at"),
    # Its owner does not see it any more; the row stays, since lists are read on from its id.
    _time("deleted_at"),
    Index("batches_by_status", "status", "id"),
    Index("batches_by_turn", "status", "tenant_id", "rank", "due_at", "created_at", "id"),
    Index("batches_by_due", "status", "due_at", "id"),
    Index("batches_by_tenant", "tenant_id", "created_at", "id"),
    Index("batches_by_input_file", "tenant_id", "input_file_id"),
    Index("batches_by_idempotency_key", "tenant_id", "idempotency_key", unique=True),
    Index("batches_by_retry", "tenant_id", "retry_of"),
    Index("batches_by_removal", "remove_work_at"),
)

shards = Table(
    "shards",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("tenant_id", String, nullable=False),
    # The ingest window that the Shard's rows come from; finalize merges slice by slice.
    Column("slice", Integer, nullable=False),
    Column("num_jobs", Integer, nullable=False),
    Column("num_rows", Integer, nullable=False),
    Column("num_prompt_tokens", BigInteger, nullable=False),
    # With those that its Jobs are expected to answer.
    _count("num_expected_tokens"),
    # What its rows need of a machine (needs.py); of earlier versions than 15 nobody knows.
    Column("size_class", String, nullable=False, default=""),
    _count("max_row_tokens"),
    _count("least_row_tokens"),
    Column("state", String, nullable=False),
    # The Lane that it was sent to, null while it waits.
    Column("lane", String),
    # One bit for each Job: whether a result of it was accepted.
    Column("accepted", LargeBinary, nullable=False),
    _count("num_accepted"),
    _time("sent_at"),
    # When the sweep looks whether the Shard is silent, and how often it has rung in vain.
    _time("ring_at"),
    _count("num_rings"),
    # Its lines of the result files lie in the Store, to be merged with those of its slice.
    Column("has_lines", Boolean, nullable=False, default=False),
    Index("shards_by_slice", "batch_id", "slice", "n"),
    Index("shards_by_state", "state", "batch_id", "n"),
    Index("shards_by_class", "batch_id", "state", "size_class", "n"),
)

segments = Table(
    "segments",
    metadata,
    Column("batch_id", String, primary_key=True),
    # The acceptance number: from 1, without gaps within a batch.
    Column("number", BigInteger, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("shard_n", Integer, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("num_results", Integer, nullable=False),
    # Those of the results that no earlier Segment had; null in a Ledger of schema 1.
    Column("num_counted", Integer),
    # Stands for this Segment and all before it, in their order; null in an earlier schema than 10.
    Column("trail", String),
    UniqueConstraint("batch_id", "shard_n", "attempt_id", "seq"),
)

files = Table(
    "files",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("filename", String, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    # In hex; null in a file of an earlier version, and in one that was found again in the Store.
    Column("sha256", String),
    Column("created_at", BigInteger, nullable=False),
    _time("expires_at"),
    # The bytes are gone; the row stays, since lists are read on from its id.
    _time("deleted_at"),
    Index("files_by_tenant", "tenant_id", "created_at", "id"),
    Index("files_by_expiry", "expires_at"),
)

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", String, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    # By name, those that differ from the defaults: a number, or null for no limit.
    Column("quotas", JSON(none_as_null=True)),
    # The minute (since 1970) for which API processes last took requests, and how many they took.
    _time("request_window"),
    _time("requests_granted"),
)

api_keys = Table(
    "api_keys",
    metadata,
    # The public part of the key, by which it is found.
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("name", String, nullable=False),
    # HMAC-SHA256 of the secret part under the pepper, in hex.
    Column("digest", String, nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    _time("expires_at"),
    _time("revoked_at"),
    _time("last_used_at"),
    Index("api_keys_by_tenant", "tenant_id", "created_at", "id"),
)

# What can be asked for, as the processes that read input files tell it; the same for all tenants.
models = Table(
    "models",
    metadata,
    Column("name", String, primary_key=True),
    Column("revision", String, nullable=False),
    Column("served_names", JSON, nullable=False),
    Column("max_model_len", Integer, nullable=False),
    # By language; null until the tokenizer is loaded.
    Column("tokens_per_word", JSON(none_as_null=True)),
    Column("created_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)

# What some process does now and then for all of them: one that finds it due claims it first.
chores = Table(
    "chores",
    metadata,
    Column("name", String, primary_key=True),
    Column("due_at", BigInteger, nullable=False),
)
