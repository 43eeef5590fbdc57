"""The objects that the API answers with: every field that the official clients know, always."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel

from gristmill.api.timings import TimingsObject, timings_object
from gristmill.control.budget import cost_of
from gristmill.control.outlook import Outlook, Phase, Progress
from gristmill.ledger.batch import Batch
from gristmill.ledger.estimates import Estimate
from gristmill.ledger.files import File
from gristmill.ledger.models import ServedModel
from gristmill.ledger.status import BatchStatus
from gristmill.prices import PriceTable
from gristmill.types import Usage

Item = TypeVar("Item", bound=BaseModel)

_MAX_FAILURES_TOLD = 5


class ListObject(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    #: Other than `processed` only where `validate_for` has asked for a check.
    status: Literal["uploaded", "processed", "error"] = "processed"
    status_details: str | None = None


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchDeleted(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    deleted: bool = True


class LineErrorObject(BaseModel):
    code: str
    message: str
    param: str | None
    line: int | None


class LineErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[LineErrorObject]


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class InputTokensDetails(BaseModel):
    cached_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class BatchUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ProgressObject(BaseModel):
    """What a batch does or waits for, and when it is expected to be done."""

    phase: Phase
    detail: str
    #: Batches of the same owner that go first.
    batches_ahead: int
    #: What the workers of its model accomplish, all together; null until it is measured.
    tokens_per_second: float | None
    completes_at: int | None


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: LineErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    priority: int
    max_total_tokens: int | None
    max_cost: float | None
    #: Of the tokens in `usage`; null for a model without a price.
    cost: float | None
    #: Null in a batch that has ended.
    progress: ProgressObject | None
    #: Null before the first row has its answer.
    timings: TimingsObject | None
    #: The batch whose failed and missing rows this one runs again.
    retry_of: str | None


class PriceObject(BaseModel):
    """For a million tokens; `cached` are prompt tokens that were not computed again."""

    currency: str
    prompt: float
    cached: float
    completion: float


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "gristmill"
    shutdown_date: str | None = None
    #: Longest prompt plus output, in tokens.
    max_model_len: int
    #: Null for a model without one.
    price: PriceObject | None
    #: Of the same text, for each word that it has in English, by language.
    tokens_per_word: dict[str, float] | None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelObject]


def list_object(items: list[Item], ids: list[str], *, has_more: bool) -> ListObject[Item]:
    return ListObject(
        data=items,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=has_more,
    )


def file_object(file: File, check: Estimate | None = None) -> FileObject:
    """`check` is what a batch of it would meet, where that was asked for."""
    status: Literal["uploaded", "processed", "error"] = "processed"
    details = None
    if check is not None and check.would_run is None:
        status, details = "uploaded", f"It is being checked: see /v1/estimate/{check.id}."
    elif check is not None and not check.would_run:
        status, details = "error", _failures_of(check)
    return FileObject(
        id=file.id,
        bytes=file.num_bytes,
        created_at=file.created_at,
        expires_at=file.expires_at,
        filename=file.filename,
        purpose=file.purpose,
        status=status,
        status_details=details,
    )


def _failures_of(check: Estimate) -> str:
    """Why a batch of the file would fail: the first lines in full."""
    fatal = [problem for problem in check.problems if problem.fails == "batch"]
    told = " ".join(
        problem.message if problem.line is None else f"Line {problem.line}: {problem.message}"
        for problem in fatal[:_MAX_FAILURES_TOLD]
    )
    rest = "" if len(fatal) <= _MAX_FAILURES_TOLD else f" All are in /v1/estimate/{check.id}."
    return told + rest


def batch_object(batch: Batch, outlook: Outlook) -> BatchObject:
    is_counted = batch.status not in (BatchStatus.VALIDATING, BatchStatus.FAILED)
    cost = cost_of(batch)
    errors = [
        LineErrorObject(code=e.code, message=e.message, param=e.param, line=e.line)
        for e in batch.errors
    ]
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint or "",
        # Of a file that was refused nobody knows what it was for.
        model=None if batch.status is BatchStatus.FAILED else batch.model.name or None,
        errors=LineErrors(data=errors) if errors else None,
        input_file_id=batch.input_file_id or "",
        completion_window=batch.completion_window or "",
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_at,
        in_progress_at=batch.in_progress_at,
        expires_at=batch.expires_at,
        finalizing_at=batch.finalizing_at,
        completed_at=batch.completed_at,
        failed_at=batch.failed_at,
        expired_at=batch.expired_at,
        cancelling_at=batch.cancelling_at,
        cancelled_at=batch.cancelled_at,
        request_counts=RequestCounts(
            total=batch.total if is_counted else 0,
            completed=batch.completed if is_counted else 0,
            failed=batch.failed if is_counted else 0,
        ),
        usage=usage_object(batch.usage),
        metadata=dict(batch.metadata) if batch.metadata is not None else None,
        priority=batch.priority,
        max_total_tokens=batch.max_total_tokens,
        max_cost=None if batch.max_cost is None else float(batch.max_cost),
        cost=None if cost is None else float(cost),
        progress=progress_object(outlook.of(batch)),
        timings=timings_object(batch),
        retry_of=batch.retry_of,
    )


def progress_object(progress: Progress | None) -> ProgressObject | None:
    if progress is None:
        return None
    speed = progress.tokens_per_s
    return ProgressObject(
        phase=progress.phase,
        detail=progress.detail,
        batches_ahead=progress.num_ahead,
        tokens_per_second=None if speed is None else round(speed, 1),
        completes_at=progress.completes_at,
    )


def usage_object(usage: Usage) -> BatchUsage:
    return BatchUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def model_object(model: ServedModel, name: str, prices: PriceTable) -> ModelObject:
    found = prices.find(model.name)
    price = None
    if found is not None:
        price = PriceObject(
            currency=prices.currency,
            prompt=float(found.prompt),
            cached=float(found.cached),
            completion=float(found.completion),
        )
    words = model.tokens_per_word
    return ModelObject(
        id=name,
        created=model.created_at,
        max_model_len=model.max_model_len,
        price=price,
        tokens_per_word=None if words is None else dict(words),
    )
