"""What the Ledger knows of one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping

from gristmill.errors import LineError
from gristmill.histogram import Histogram
from gristmill.ledger.batch_times import BatchTimes
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.types import Endpoint, ModelPin, Usage

#: The name under which the options of a batch remember its `traceparent`.
TRACEPARENT = "traceparent"


@dataclass(frozen=True, slots=True)
class Submission:
    """What the caller of the API asked for; its model is known when ingest has read a line."""

    endpoint: Endpoint
    input_file_id: str
    completion_window: str
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: int | None = None
    #: Batches of the same tenant with a higher one go first.
    priority: int = 0
    max_total_tokens: int | None = None
    max_cost: str | None = None
    idempotency_key: str | None = None
    #: Of the request and the key that it came with: the same in a blind re-send.
    request_digest: str | None = None
    #: The batch whose rows without an answer are run again, and the error file that names them;
    #: without that file it is all of them.
    retry_of: str | None = None
    retry_file_id: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of the table, with the nouns of types.py."""

    id: str
    tenant_id: str
    status: BatchStatus
    endpoint: Endpoint | None
    model: ModelPin
    seed: str
    input_fingerprint: str
    options: Mapping[str, Any]
    run_id: str
    ingest_byte_offset: int
    ingest_line_no: int
    ingest_row_idx: int
    num_slices: int
    num_shards: int
    expected_tokens: int
    rank: int
    due_at: int
    total: int
    completed: int
    failed: int
    usage: Usage
    ttft: Histogram
    itl: Histogram
    times: BatchTimes
    last_accepted: int
    budget_used_at: int | None
    errors: tuple[LineError, ...]
    num_errors: int
    freeze_reason: FreezeReason | None
    merged_slices: int
    num_output_lines: int
    num_error_lines: int
    output_file_id: str | None
    error_file_id: str | None
    input_file_id: str | None
    completion_window: str | None
    metadata: Mapping[str, str] | None
    output_expires_after_s: int | None
    max_total_tokens: int | None
    max_cost: str | None
    idempotency_key: str | None
    request_digest: str | None
    retry_of: str | None
    retry_file_id: str | None
    created_at: int
    expires_at: int | None
    in_progress_at: int | None
    first_sent_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    remove_work_at: int | None
    deleted_at: int | None

    @property
    def traceparent(self) -> str:
        """What spans of it hang on: the request that made it. Empty where nobody traced that."""
        return str(self.options.get(TRACEPARENT, ""))

    @property
    def priority(self) -> int:
        """Batches of the same tenant with a higher one go first."""
        return -self.rank


def batch_from_row(row: RowMapping) -> Batch:
    fields = dict(row)
    return Batch(
        status=BatchStatus(fields.pop("status")),
        endpoint=(endpoint := fields.pop("endpoint")) and Endpoint(endpoint),
        model=ModelPin(
            name=fields.pop("model_name"),
            revision=fields.pop("model_revision"),
            tokenizer_hash=fields.pop("tokenizer_hash"),
            dtype=fields.pop("dtype"),
        ),
        usage=Usage(
            prompt_tokens=fields.pop("prompt_tokens"),
            completion_tokens=fields.pop("completion_tokens"),
            cached_tokens=fields.pop("cached_tokens"),
        ),
        ttft=Histogram.from_wire(fields.pop("ttft")),
        itl=Histogram.from_wire(fields.pop("itl")),
        times=BatchTimes.from_wire(fields.pop("times")),
        errors=tuple(LineError(**error) for error in fields.pop("errors")),
        freeze_reason=(reason := fields.pop("freeze_reason")) and FreezeReason(reason),
        **fields,
    )
