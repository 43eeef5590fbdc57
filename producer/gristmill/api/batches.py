"""/v1/batches: create, list, retrieve, cancel. The work itself is the control side's."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
)

from gristmill.api.access import Scope
from gristmill.api.batch_webhook import (
    BatchWithWebhookObject,
    WebhookFields,
    is_same_webhook,
    webhook_of,
    with_webhook,
)
from gristmill.api.bodies import ServedEndpoint, documented, json_body
from gristmill.api.context import (
    Api,
    BatchesReader,
    BatchesWriter,
    UseApi,
    is_id,
    known_caller,
)
from gristmill.api.failures import not_found, refused
from gristmill.api.lookup import list_page
from gristmill.api.objects import BatchObject, ListObject, batch_object
from gristmill.api.resent import (
    RESEND_WINDOW_S,
    IdempotencyKey,
    RetryCount,
    check_key,
    is_resent,
    key_reused,
)
from gristmill.api.uploads import MAX_EXPIRY_S, MIN_EXPIRY_S
from gristmill.control.submit import InputFileMissing, InputFileUnusable, submit
from gristmill.errors import StoreError
from gristmill.ledger import batches, submissions
from gristmill.ledger.batch import Batch, Submission
from gristmill.ledger.status import OPEN, BatchStatus, FreezeReason
from gristmill.stores.keys import stop_key
from gristmill.types import Endpoint

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/batches", tags=["Batches"])

_MAX_PAIRS, _MAX_KEY_CHARS, _MAX_VALUE_CHARS = 16, 64, 512
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_WINDOW_S = 30 * 86400
MAX_PRIORITY = 100
#: What makes two requests the same.
_ASKED = (
    "input_file_id",
    "endpoint",
    "completion_window",
    "metadata",
    "output_expires_after_s",
    "priority",
    "max_total_tokens",
    "max_cost",
)


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: StrictInt = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


class BatchRequest(WebhookFields):
    model_config = ConfigDict(extra="forbid")

    input_file_id: StrictStr
    endpoint: ServedEndpoint
    completion_window: StrictStr
    metadata: dict[StrictStr, StrictStr] | None = None
    output_expires_after: ExpiresAfter | None = None
    # Extensions: the official client sends them as extra_body.
    priority: StrictInt = Field(0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    max_total_tokens: StrictInt | None = Field(None, ge=1, le=2**53)
    max_cost: StrictFloat | None = Field(None, gt=0, le=1e12, allow_inf_nan=False)

    @field_validator("metadata")
    @classmethod
    def _check_metadata(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if value is None:
            return None
        if len(value) > _MAX_PAIRS:
            raise ValueError(f"at most {_MAX_PAIRS} pairs are kept")
        if any(len(name) > _MAX_KEY_CHARS for name in value):
            raise ValueError(f"a key has at most {_MAX_KEY_CHARS} characters")
        if any(len(text) > _MAX_VALUE_CHARS for text in value.values()):
            raise ValueError(f"a value has at most {_MAX_VALUE_CHARS} characters")
        return value

    @field_validator("completion_window")
    @classmethod
    def _check_window(cls, value: str) -> str:
        if not 0 < window_s(value) <= MAX_WINDOW_S:
            raise ValueError("write a number and s, m, h or d, as 24h; at most 30d")
        return value


def window_s(text: str) -> int:
    """Seconds of `90s`, `30m`, `24h`, `7d`; 0 for anything else."""
    match = _WINDOW.fullmatch(text)
    return int(match[1]) * _UNIT_S[match[2]] if match else 0


@router.post("", openapi_extra=documented(BatchRequest))
def create_batch(
    api: UseApi,
    caller: BatchesWriter,  # known before the body is read
    body: Annotated[BatchRequest, Depends(json_body(BatchRequest))],
    idempotency_key: IdempotencyKey = None,
    retry_count: RetryCount = None,
) -> BatchObject | BatchWithWebhookObject:
    """Make a batch of an uploaded file. Validation follows; look at `status`.

    The same `Idempotency-Key` gives the same batch. The official client sends none when it tries
    again by itself, but counts its tries: such a request gives the batch of the first one.
    """
    check_key(idempotency_key)
    if body.max_cost is not None and not api.prices:
        raise refused(
            "max_cost needs the prices of models, and this service has none. Give max_total_tokens "
            "instead, or ask whoever runs it to set GRISTMILL_PRICES.",
            param="max_cost",
            code="price_unknown",
        )
    expires_after = body.output_expires_after
    submission = Submission(
        endpoint=Endpoint(body.endpoint),
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        metadata=body.metadata,
        output_expires_after_s=expires_after.seconds if expires_after else None,
        priority=body.priority,
        max_total_tokens=body.max_total_tokens,
        max_cost=None if body.max_cost is None else str(Decimal(str(body.max_cost))),
        idempotency_key=idempotency_key,
        request_digest=_digest(caller.key_id, body),
    )
    webhook = webhook_of(api, caller.tenant_id, body)
    try:
        batch, is_new = submit(
            api.ledger,
            api.store,
            api.settings,
            caller.tenant_id,
            submission,
            now_s=api.clock(),
            window_s=window_s(body.completion_window),
            resent_since=api.now - RESEND_WINDOW_S if is_resent(retry_count) else None,
            webhook=webhook,
            traceparent=api.telemetry.tracer.current(),
        )
    except InputFileMissing as error:
        raise not_found("file", body.input_file_id, param="input_file_id") from error
    except InputFileUnusable as error:
        raise refused(str(error), param="input_file_id") from error
    if not is_new and not (_is_same(batch, submission) and is_same_webhook(api, batch, body)):
        raise key_reused(batch.id)
    if is_new:
        log.info(
            "batch created tenant=%s batch=%s key=%s", batch.tenant_id, batch.id, caller.key_id
        )
        api.on_submitted()
    return with_webhook(api, batch, body, batch_object(batch, api.outlook))


@router.get("")
def list_batches(
    api: UseApi,
    caller: BatchesReader,
    after: Annotated[str | None, Query(description="The id of the last batch seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    status: Annotated[
        list[BatchStatus] | None, Query(max_length=8, description="Only those in one of these.")
    ] = None,
) -> ListObject[BatchObject]:
    """The newest first."""
    return list_page(
        api,
        "batch",
        after,
        lambda conn: submissions.list_page(
            conn, caller.tenant_id, limit=limit, after_id=after, statuses=status
        ),
        lambda batch: batch_object(batch, api.outlook),
    )


class _PolledRoute(APIRoute):
    """Documented as any other. FastAPI would take longer to find the parameters than all else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            api, caller = await known_caller(request, Scope.BATCHES_READ)
            return await retrieve_batch(request.path_params["batch_id"], api, caller)

        return handle


async def retrieve_batch(batch_id: str, api: UseApi, caller: BatchesReader) -> Response:
    # Without a thread, and without checking the answer once more.
    if api.quick_look is None:
        answer = await run_in_threadpool(_read_batch, api, caller.tenant_id, batch_id)
    else:
        answer = _read_batch(api, caller.tenant_id, batch_id)
    return Response(answer, media_type="application/json")


router.add_api_route(
    "/{batch_id}",
    retrieve_batch,
    methods=["GET"],
    response_model=BatchObject,
    route_class_override=_PolledRoute,
)


@router.post("/{batch_id}/cancel")
def cancel_batch(batch_id: str, api: UseApi, caller: BatchesWriter) -> BatchObject:
    """Stop it. What is finished is kept, and lies in the output file when it is `cancelled`."""
    find_batch(api, caller.tenant_id, batch_id)
    with api.ledger.write() as conn:
        was_open = batches.transition(
            conn, caller.tenant_id, batch_id, BatchStatus.CANCELLING, api.now
        )
    batch = find_batch(api, caller.tenant_id, batch_id)
    if was_open:
        with suppress(StoreError):  # the control side writes it too; now its rows stop sooner
            api.store.put(stop_key(batch.tenant_id, batch.id), FreezeReason.CANCELLED.encode())
        log.info(
            "batch cancelled tenant=%s batch=%s key=%s", batch.tenant_id, batch.id, caller.key_id
        )
    elif batch.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        its_end = "is ending" if batch.status in OPEN else f"is {batch.status.value}"
        raise refused(
            f"The batch {its_end}, so there is nothing to cancel.",
            param="batch_id",
            code="batch_not_cancellable",
        )
    return batch_object(batch, api.outlook)


def _read_batch(api: Api, tenant_id: str, batch_id: str) -> str:
    return batch_object(find_batch(api, tenant_id, batch_id), api.outlook).model_dump_json()


def find_batch(api: Api, tenant_id: str, batch_id: str) -> Batch:
    """Raises ApiError (404) unless the tenant has this batch."""
    batch = None
    if not is_id(batch_id):
        pass
    elif api.quick_look is not None:
        batch = api.quick_look.find(tenant_id, batch_id)
    else:
        with api.ledger.read() as conn:
            batch = batches.get(conn, tenant_id, batch_id)
    if batch is None:
        raise not_found("batch", batch_id, param="batch_id")
    return batch


def _digest(key_id: str, body: BatchRequest) -> str:
    document = json.dumps([key_id, body.model_dump()], sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


def _is_same(batch: Batch, submission: Submission) -> bool:
    return all(getattr(batch, name) == getattr(submission, name) for name in _ASKED)
