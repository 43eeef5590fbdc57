"""The page of one batch: how far it is, how fast it went, what failed, a few of its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from gristmill.api.access import Scope
from gristmill.api.batch_life import retry_batch
from gristmill.api.batches import cancel_batch, find_batch
from gristmill.api.files import retrieve_content
from gristmill.api.objects import batch_object
from gristmill.api.timings import PercentilesObject, TimingsObject
from gristmill.dashboard import chart
from gristmill.dashboard.batches import name_of
from gristmill.dashboard.sample import sample_of
from gristmill.dashboard.timeline import timeline_of
from gristmill.dashboard.visit import Visit, form, page, path_of
from gristmill.ledger import courses, life, webhooks
from gristmill.ledger.batch import Batch
from gristmill.ledger.courses import Course
from gristmill.ledger.status import OPEN, BatchStatus, FreezeReason

_POLL_S = 3
#: What rows are called that a batch has never run, by why it stopped.
_NEVER_RUN = {
    FreezeReason.EXPIRED: "batch_expired",
    FreezeReason.CANCELLED: "batch_cancelled",
    FreezeReason.BUDGET: "budget_exceeded",
}


def show_batch(visit: Visit) -> Response:
    """All of the page, or, for a poll, the part that changes: without the rows, which do not."""
    batch = _asked(visit)
    with visit.api.ledger.read() as conn:
        course = courses.find(conn, batch.tenant_id, batch.id)
        retried_by = life.find_retry(conn, batch.tenant_id, batch.id)
        endpoint = webhooks.of_batch(conn, batch.tenant_id, batch.id)
    shown = batch_object(batch, visit.api.outlook)
    sample = None if visit.is_poll else sample_of(visit.api, batch, after=visit.asked("after"))
    is_open = batch.status in OPEN
    return visit.render(
        "batch_live.html" if visit.is_poll else "batch.html",
        batch=shown,
        name=name_of(shown),
        currency=visit.api.prices.currency,
        can_cancel=is_open and batch.status is not BatchStatus.CANCELLING,
        can_retry=not is_open and _has_rows_to_retry(batch),
        retried_by=retried_by.id if retried_by else None,
        webhook=endpoint if endpoint is not None and endpoint.deleted_at is None else None,
        course=course,
        rates=rates_of(course) if course else None,
        latencies=_latencies(shown.timings),
        stretches=_stretches(shown.timings),
        failures=failures_of(batch, course),
        timeline=timeline_of(batch),
        poll_s=_POLL_S if is_open else None,
        sample=sample,
        is_first_sample=visit.asked("after") is None,
    )


def cancel(visit: Visit) -> Response:
    batch_id = visit.request.path_params["batch_id"]
    cancel_batch(batch_id, visit.api, visit.caller)
    visit.tell_audit("POST /v1/batches/{batch_id}/cancel")
    return visit.go(path_of("batches", batch_id), done="cancelling")


def retry(visit: Visit) -> Response:
    made = retry_batch(visit.request.path_params["batch_id"], visit.api, visit.caller)
    visit.tell_audit("POST /v1/batches/{batch_id}/retry", made_id=made.id)
    return visit.go(path_of("batches", made.id), done="retried")


def download(visit: Visit) -> Response:
    """One of the files of a batch, under the same conditions as from the API."""
    batch = _asked(visit)
    which = visit.request.path_params["which"]
    files = {
        "input": batch.input_file_id,
        "output": batch.output_file_id,
        "errors": batch.error_file_id,
    }
    response = retrieve_content(files.get(which) or "", visit.api, visit.caller, None, None)
    response.headers["content-disposition"] = f'attachment; filename="{batch.id}-{which}.jsonl"'
    return response


@dataclass(frozen=True, slots=True)
class Rates:
    """What was accepted per second, point by point; what a chart and its table are made of."""

    begins_at: int
    width_s: int
    rows: Sequence[float]
    tokens: Sequence[float]
    drawn: chart.Chart | None

    @property
    def for_script(self) -> str:
        times = [self.begins_at + i * self.width_s for i in range(len(self.rows))]
        return json.dumps(
            {"x": times, "width": self.width_s, "tokens": self.tokens, "rows": self.rows}
        )


def rates_of(course: Course) -> Rates:
    width_s = course.width_s
    tokens = [
        round((point.prompt_tokens + point.completion_tokens) / width_s, 1)
        for point in course.points
    ]
    rows = [round(point.rows / width_s, 2) for point in course.points]
    return Rates(course.begins_at, width_s, rows, tokens, chart.draw(tokens))


def failures_of(batch: Batch, course: Course | None) -> list[tuple[str, int]]:
    """Failed rows by kind, the most frequent first; with those that were never run."""
    found = dict(course.failures) if course else {}
    missing = batch.failed - sum(found.values())
    if batch.status not in OPEN and batch.status is not BatchStatus.FAILED and missing > 0:
        reason = batch.freeze_reason
        kind = _NEVER_RUN.get(reason, "not_counted") if reason else "not_counted"
        found[kind] = found.get(kind, 0) + missing
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def _has_rows_to_retry(batch: Batch) -> bool:
    """As control/retry.py has it."""
    if batch.status is BatchStatus.FAILED:
        return False
    return batch.error_file_id is not None or batch.in_progress_at is None


def _latencies(timings: TimingsObject | None) -> list[tuple[str, str, PercentilesObject]]:
    """Name, meaning and percentiles of what was measured."""
    if timings is None:
        return []
    found = (
        ("TTFT", "time to first token: from a row's entry into an engine", timings.ttft_seconds),
        ("ITL", "inter-token latency: between two tokens of a row", timings.itl_seconds),
        ("Wait", "until a row is computed, once the batch is in progress", timings.wait_seconds),
    )
    return [(name, meaning, values) for name, meaning, values in found if values is not None]


def _stretches(timings: TimingsObject | None) -> list[chart.Stretch]:
    """Where the time of a row went, on average."""
    if timings is None or timings.mean_row_seconds is None:
        return []
    return chart.stretches(timings.mean_row_seconds.model_dump())


def _asked(visit: Visit) -> Batch:
    return find_batch(visit.api, visit.caller.tenant_id, visit.request.path_params["batch_id"])


_READ, _WRITE = Scope.BATCHES_READ, Scope.BATCHES_WRITE
ROUTES = [
    Route("/batches/{batch_id}", page(show_batch, _READ)),
    Route("/batches/{batch_id}/cancel", form(cancel, _READ, _WRITE), methods=["POST"]),
    Route("/batches/{batch_id}/retry", form(retry, _READ, _WRITE), methods=["POST"]),
    Route("/batches/{batch_id}/{which}.jsonl", page(download, _READ, Scope.FILES_READ)),
]
