"""The objects that the API answers with. Fields that are not known here are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from gristmill.client.steps import Steps

#: Statuses in which nothing more will happen.
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class APIObject(BaseModel):
    """Lenient, as the openai package's: a newer service may say more, an older one less."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    _request_id: str | None = PrivateAttr(None)

    @property
    def request_id(self) -> str | None:
        """Names the call that this came from in the service's log."""
        return self._request_id

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class FileObject(APIObject):
    id: str
    object: str = "file"
    bytes: int = 0
    created_at: int = 0
    expires_at: int | None = None
    filename: str = ""
    purpose: str = ""
    status: str = "processed"
    status_details: str | None = None


class FileDeleted(APIObject):
    id: str
    object: str = "file"
    deleted: bool = True


class LineError(APIObject):
    code: str | None = None
    message: str = ""
    param: str | None = None
    line: int | None = None


class LineErrors(APIObject):
    object: str = "list"
    data: list[LineError] = []


class RequestCounts(APIObject):
    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(APIObject):
    cached_tokens: int = 0


class OutputTokensDetails(APIObject):
    reasoning_tokens: int = 0


class BatchUsage(APIObject):
    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


class BatchProgress(APIObject):
    """What a batch does or waits for, in words, and when it is expected to be done."""

    phase: str = ""
    detail: str = ""
    #: Batches of the same owner that go first.
    batches_ahead: int = 0
    tokens_per_second: float | None = None
    completes_at: int | None = None


class Percentiles(APIObject):
    """In seconds."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class BatchTimings(APIObject):
    """Of the rows that have their answer; see the fields of the service's own object."""

    ttft_seconds: Percentiles | None = None
    itl_seconds: Percentiles | None = None
    wait_seconds: Percentiles | None = None
    #: On average, by where a row was: `ledger`, `queue`, `worker`, `prefill`, `decode`.
    mean_row_seconds: dict[str, float] | None = None
    validating_seconds: int | None = None
    finalizing_seconds: int | None = None


class Batch(APIObject):
    id: str
    object: str = "batch"
    endpoint: str = ""
    model: str | None = None
    errors: LineErrors | None = None
    input_file_id: str = ""
    completion_window: str = ""
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int = 0
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage = BatchUsage()
    metadata: dict[str, str] | None = None
    priority: int = 0
    max_total_tokens: int | None = None
    max_cost: float | None = None
    #: Of the tokens in `usage`; None for a model without a price.
    cost: float | None = None
    #: None in a batch that has ended.
    progress: BatchProgress | None = None
    #: None before the first row has its answer.
    timings: BatchTimings | None = None
    #: The batch whose failed and missing rows this one runs again.
    retry_of: str | None = None
    #: Where its end is told, and the secret that signs it: when it is created only.
    webhook_url: str | None = None
    webhook_secret: str | None = Field(None, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class BatchDeleted(APIObject):
    id: str
    object: str = "batch"
    deleted: bool = True


class Model(APIObject):
    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = ""
    #: Longest prompt plus output, in tokens.
    max_model_len: int | None = None
    #: For a million tokens: `currency`, `prompt`, `cached`, `completion`.
    price: dict[str, Any] | None = None
    #: Of the same text, for each word that it has in English, by language.
    tokens_per_word: dict[str, float] | None = None


class ApiKey(APIObject):
    id: str
    object: str = "api_key"
    name: str = ""
    scopes: list[str] = []
    created_at: int = 0
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None
    #: The key itself: in the answer that creates it, and nowhere else.
    key: str | None = Field(None, repr=False)


Object = TypeVar("Object", bound=APIObject)


@dataclass(frozen=True, slots=True)
class PageContent(Generic[Object]):
    """One page of a list, and how the next one is asked for."""

    data: list[Object]
    has_more: bool
    #: Asks for the page behind this one; None at the end.
    next: Callable[[], Steps[PageContent[Object]]] | None = field(repr=False)
