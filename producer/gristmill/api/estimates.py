"""/v1/estimate: what a file would cost as a batch, how long it would take, what is wrong."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, StrictStr

from gristmill.api.bodies import ServedEndpoint, documented, json_body
from gristmill.api.context import BatchesReader, BatchesWriter, UseApi
from gristmill.api.failures import refused
from gristmill.api.file_checks import check_room_for_estimate
from gristmill.api.files import find_file
from gristmill.api.lookup import find
from gristmill.api.resent import IdempotencyKey, first_made, key_reused, named
from gristmill.control.estimate import LIFETIME_S
from gristmill.ledger import estimates, quotas
from gristmill.ledger.estimates import Estimate, EstimateStatus
from gristmill.ledger.ids import new_id
from gristmill.types import Endpoint

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/estimate", tags=["Estimates"])


class EstimateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    input_file_id: StrictStr
    endpoint: ServedEndpoint


class EstimateCounts(BaseModel):
    total: int
    #: Rows that would get an error line instead of an answer.
    refused: int


class OutputTokens(BaseModel):
    #: As many as your rows on this model had on average lately; null where there were none.
    expected: int | None
    #: What the lines allow.
    max: int


class CostObject(BaseModel):
    """At today's prices: of the input alone, with the expected output, with all that may come."""

    currency: str
    min: float
    expected: float | None
    max: float


class Seconds(BaseModel):
    """From the batch's turn to its end, at the rates of batches that ended lately."""

    min: float
    max: float
    num_measured: int


class ProblemObject(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    #: What it would fail: the whole batch, or its row alone.
    fails: Literal["batch", "row"]
    code: str
    message: str
    line: int | None
    param: str | None


class EstimateObject(BaseModel):
    id: str
    object: Literal["estimate"] = "estimate"
    status: EstimateStatus
    input_file_id: str
    endpoint: str
    model: str | None
    created_at: int
    completed_at: int | None
    expires_at: int | None
    #: Whether a batch of this file would run; null until it is known.
    would_run: bool | None
    request_counts: EstimateCounts
    #: Exact, of the rows that were read and would run.
    input_tokens: int
    output_tokens: OutputTokens | None
    #: Null for a model without a price.
    cost: CostObject | None
    seconds: Seconds | None
    #: The first ones; `num_problems` counts them all.
    problems: list[ProblemObject]
    num_problems: int


@router.post("", openapi_extra=documented(EstimateRequest))
def create_estimate(
    api: UseApi,
    caller: BatchesWriter,  # known before the body is read
    body: Annotated[EstimateRequest, Depends(json_body(EstimateRequest))],
    idempotency_key: IdempotencyKey = None,
) -> EstimateObject:
    """Read a file as a batch of it would be read. Look at `status` until it is `completed`.

    The same `Idempotency-Key` gives the same estimate for 24 hours.
    """
    request = named("estimates", idempotency_key, body.model_dump())
    file = find_file(api, caller.tenant_id, body.input_file_id, param="input_file_id")
    if file.purpose != "batch":
        raise refused(
            f"The file {file.id} has the purpose {file.purpose!r}, and not 'batch'.",
            param="input_file_id",
        )
    estimate = Estimate(
        id=new_id("est_", api.clock()),
        tenant_id=caller.tenant_id,
        status=EstimateStatus.QUEUED,
        input_file_id=file.id,
        endpoint=Endpoint(body.endpoint),
        model_name="",
        created_at=api.now,
        expires_at=api.now + LIFETIME_S,
    )
    with api.ledger.write() as conn:
        first_id = first_made(conn, caller.tenant_id, request, estimate.id, now=api.now)
        if first_id != estimate.id:
            first = estimates.get(conn, caller.tenant_id, first_id, now=api.now)
            if first is None:
                raise key_reused(first_id, why="which is not there any more")
            return estimate_object(first)
        quotas.get(conn, caller.tenant_id, for_update=True)  # one after the other
        check_room_for_estimate(conn, caller.tenant_id)
        estimates.add(conn, estimate)
    log.info("estimate created tenant=%s estimate=%s", caller.tenant_id, estimate.id)
    api.on_submitted()
    return estimate_object(estimate)


@router.get("/{estimate_id}")
def retrieve_estimate(estimate_id: str, api: UseApi, caller: BatchesReader) -> EstimateObject:
    """It stays for a week."""
    estimate = find(
        api,
        "estimate",
        estimate_id,
        lambda conn: estimates.get(conn, caller.tenant_id, estimate_id, now=api.now),
        param="estimate_id",
    )
    return estimate_object(estimate)


def estimate_object(estimate: Estimate) -> EstimateObject:
    forecast = estimate.forecast or {}
    is_read = estimate.status is EstimateStatus.COMPLETED
    would_run = estimate.would_run if is_read else None
    return EstimateObject(
        id=estimate.id,
        status=estimate.status,
        input_file_id=estimate.input_file_id,
        endpoint=estimate.endpoint,
        # Of a file that would be refused nobody knows what it is for.
        model=None if would_run is False else estimate.model_name or None,
        created_at=estimate.created_at,
        completed_at=estimate.completed_at,
        expires_at=estimate.expires_at,
        would_run=would_run,
        request_counts=EstimateCounts(total=estimate.num_rows, refused=estimate.num_refused),
        input_tokens=estimate.prompt_tokens,
        output_tokens=forecast.get("output_tokens"),
        cost=forecast.get("cost"),
        seconds=forecast.get("seconds"),
        problems=list(map(ProblemObject.model_validate, estimate.problems)),
        num_problems=estimate.num_problems,
    )
