"""The page of all batches: what is under way, how far each is, page by page and by status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from gristmill.api.access import Scope
from gristmill.api.batches import list_batches
from gristmill.api.objects import BatchObject
from gristmill.api.usage import list_usage
from gristmill.dashboard.formats import plain
from gristmill.dashboard.visit import Visit, page
from gristmill.ledger import overview
from gristmill.ledger.status import OPEN, BatchStatus
from gristmill.ledger.usage import DAY_S

_ON_A_PAGE = 50
#: Seconds between two looks at batches that run, and at those that do not.
_POLL_S, _QUIET_POLL_S = 4, 15
#: By which word of the URL which batches are shown; with none all of them.
_SHOWN: Mapping[str, tuple[BatchStatus, ...]] = {
    "active": OPEN,
    "completed": (BatchStatus.COMPLETED,),
    "failed": (BatchStatus.FAILED, BatchStatus.EXPIRED),
    "cancelled": (BatchStatus.CANCELLED,),
}
#: Pairs of metadata that people give a batch as its name.
_NAMES = ("name", "title", "description", "job", "run")
_MAX_NAME_CHARS = 80


@dataclass(frozen=True, slots=True)
class Today:
    """What was accepted today (UTC)."""

    rows: int
    tokens: int


def show_batches(visit: Visit) -> Response:
    """All of the page, or, for a poll, the part that changes."""
    shown = visit.asked("status") or ""
    statuses = _SHOWN.get(shown)
    after = visit.asked("after")
    found = list_batches(
        visit.api,
        visit.caller,
        after=after,
        limit=_ON_A_PAGE,
        status=list(statuses) if statuses else None,
    )
    with visit.api.ledger.read() as conn:
        under_way = overview.find(conn, visit.caller.tenant_id)
    is_busy = any(batch.status in OPEN for batch in found.data)
    return visit.render(
        "batches_live.html" if visit.is_poll else "batches.html",
        batches=found.data,
        names={batch.id: name_of(batch) for batch in found.data},
        has_more=found.has_more,
        last_id=found.last_id,
        shown=shown if statuses else "",
        filters=("", *_SHOWN),
        after=after,
        under_way=under_way,
        today=_today(visit),
        poll_s=_POLL_S if is_busy else _QUIET_POLL_S,
    )


def name_of(batch: BatchObject) -> str:
    """What its owner calls the batch, if there is anything like it in its metadata."""
    metadata = batch.metadata or {}
    found = next(filter(None, (plain(metadata.get(name)) for name in _NAMES)), "")
    return found if len(found) <= _MAX_NAME_CHARS else f"{found[: _MAX_NAME_CHARS - 1]}…"


def _today(visit: Visit) -> Today:
    midnight = visit.api.now // DAY_S * DAY_S
    lines = list_usage(
        visit.api,
        visit.caller,
        start_time=midnight,
        end_time=None,
        group_by=["day"],
        after=None,
        limit=1000,
        all_tenants=False,
    ).data
    return Today(
        rows=sum(line.request_counts.total for line in lines),
        tokens=sum(line.usage.total_tokens for line in lines),
    )


ROUTES = [Route("/batches", page(show_batches, Scope.BATCHES_READ))]
