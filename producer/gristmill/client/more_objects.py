"""What an estimate, a line of usage and the objects around webhooks look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from gristmill.client.objects import APIObject, BatchUsage, RequestCounts


class EstimateCounts(APIObject):
    total: int = 0
    #: Rows that would get an error line instead of an answer.
    refused: int = 0


class OutputTokens(APIObject):
    #: As many as rows on this model had lately; None where there were none.
    expected: int | None = None
    max: int = 0


class Cost(APIObject):
    currency: str = ""
    min: float = 0.0
    expected: float | None = None
    max: float = 0.0


class Seconds(APIObject):
    """From the batch's turn to its end, at the rates of batches that ended lately."""

    min: float = 0.0
    max: float = 0.0
    num_measured: int = 0


class Problem(APIObject):
    #: `batch` or `row`: what it would fail.
    fails: str = "row"
    code: str = ""
    message: str = ""
    line: int | None = None
    param: str | None = None


class Estimate(APIObject):
    id: str
    object: str = "estimate"
    status: str
    input_file_id: str = ""
    endpoint: str = ""
    model: str | None = None
    created_at: int = 0
    completed_at: int | None = None
    expires_at: int | None = None
    would_run: bool | None = None
    request_counts: EstimateCounts = EstimateCounts()
    #: Exact, of the rows that were read and would run.
    input_tokens: int = 0
    output_tokens: OutputTokens | None = None
    #: None for a model without a price.
    cost: Cost | None = None
    seconds: Seconds | None = None
    #: The first ones; `num_problems` counts them all.
    problems: list[Problem] = Field(default_factory=list)
    num_problems: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "failed")


def sum_of(estimates: Sequence[Estimate]) -> Estimate:
    """Of several parts, one after the other, as one. Lines are those of each part."""
    if len(estimates) == 1:
        return estimates[0]
    first = estimates[0]
    return first.model_copy(
        update={
            "id": ",".join(one.id for one in estimates),
            "input_file_id": ",".join(one.input_file_id for one in estimates),
            "status": next((e.status for e in estimates if e.status == "failed"), first.status),
            "would_run": all(one.would_run for one in estimates),
            "request_counts": EstimateCounts(
                total=sum(one.request_counts.total for one in estimates),
                refused=sum(one.request_counts.refused for one in estimates),
            ),
            "input_tokens": sum(one.input_tokens for one in estimates),
            "output_tokens": _added(OutputTokens, [one.output_tokens for one in estimates]),
            "cost": _added(Cost, [one.cost for one in estimates]),
            "seconds": _added(Seconds, [one.seconds for one in estimates]),
            "problems": [problem for one in estimates for problem in one.problems],
            "num_problems": sum(one.num_problems for one in estimates),
        }
    )


def _added(kind: type[APIObject], parts: Sequence[APIObject | None]) -> APIObject | None:
    """Field by field; what one part does not know, nobody knows of the whole."""
    if None in parts:
        return None
    values: dict[str, Any] = {}
    for name in kind.model_fields:
        found = [getattr(part, name) for part in parts]
        if isinstance(found[0], str):
            values[name] = found[0]
        else:
            values[name] = None if None in found else sum(found)
    return kind(**values)


class UsageLine(APIObject):
    id: str
    object: str = "usage"
    tenant_id: str = ""
    #: As 2026-11-30, in UTC; None unless grouped by it.
    day: str | None = None
    model: str = ""
    batch_id: str | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage = BatchUsage()


class WebhookEndpoint(APIObject):
    id: str
    object: str = "webhook_endpoint"
    name: str = ""
    url: str = ""
    event_types: list[str] = Field(default_factory=list)
    signing_secret_hint: str = ""
    #: When it is created, or its secret rotated, and at no other time.
    signing_secret: str | None = Field(None, repr=False)
    created_at: int = 0
    updated_at: int = 0
    batch_id: str | None = None
    enabled: bool = True
    disabled_reason: str | None = None
    num_failures: int = 0
    last_success_at: int | None = None


class DeletedWebhookEndpoint(APIObject):
    id: str
    object: str = "webhook_endpoint.deleted"
    deleted: bool = True


class WebhookTest(APIObject):
    object: str = "webhook_endpoint.test"
    event_type: str = ""
    status_code: int = 0
    success: bool = True
    webhook_endpoint_id: str = ""


class WebhookDelivery(APIObject):
    id: str
    object: str = "webhook_delivery"
    webhook_endpoint_id: str = ""
    event_id: str = ""
    event_type: str = ""
    batch_id: str = ""
    status: str = ""
    created_at: int = 0
    next_attempt_at: int | None = None
    delivered_at: int | None = None
    attempts: list[dict[str, Any]] = Field(default_factory=list)


class WebhookEvent(APIObject):
    """What happened. Ask the API for the rest: `client.batches.retrieve(event.data["id"])`."""

    id: str
    object: str = "event"
    type: str
    created_at: int = 0
    data: dict[str, Any] = Field(default_factory=dict)
    deliveries: list[WebhookDelivery] | None = None


class WebhookReplay(APIObject):
    """What was told again, of the events from `since` to just before `until` (Unix seconds)."""

    object: str = "webhook_replay"
    since: int
    until: int
    num_events: int = 0
    num_deliveries: int = 0
    last_id: str | None = None
    has_more: bool = False


class WebhookEventTypes(APIObject):
    object: str = "list"
    data: list[str] = Field(default_factory=list)
