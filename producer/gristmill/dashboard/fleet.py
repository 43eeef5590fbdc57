"""The page of the fleet: which Workers are alive, how full they are, what waits for them.

It shows machines and sums over all tenants, no batch and no name of any; for the scope `admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from gristmill.api.access import Scope
from gristmill.control.budget import tokens_left
from gristmill.dashboard.visit import Visit, page
from gristmill.fleet import KnownWorker, WorkerState
from gristmill.ledger import paces, turns, workers
from gristmill.ledger.paces import Pace
from gristmill.ledger.turns import RunningBatch
from gristmill.queues.base import BULK_LANE

_ON_A_PAGE = 100
_POLL_S = 5
#: The order of Workers on the page.
_STATES = (
    WorkerState.READY,
    WorkerState.LOADING,
    WorkerState.DRAINING,
    WorkerState.LOST,
    WorkerState.ENDED,
)


@dataclass(frozen=True, slots=True)
class ShownWorker:
    known: KnownWorker
    state: WorkerState


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of one model: what is left of its running batches, and how long that takes at its pace."""

    model: str
    num_batches: int
    num_rows: int
    tokens: int
    tokens_per_s: float | None
    heard_at: float | None

    @property
    def seconds(self) -> float | None:
        return self.tokens / self.tokens_per_s if self.tokens_per_s else None


@dataclass(frozen=True, slots=True)
class ShownLane:
    """A Lane that Workers listen to."""

    name: str
    num_workers: int
    num_rows: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the Workers of this page that are alive."""

    num_alive: int
    num_rows: int
    tokens_per_s: float
    kv_used_tokens: int
    kv_tokens: int


def show_fleet(visit: Visit) -> Response:
    now = visit.api.clock()
    after = visit.asked("after") or ""
    with visit.api.ledger.read() as conn:
        found = workers.list_workers(conn, limit=_ON_A_PAGE + 1, after_id=after)
        running = turns.list_running(conn)
        speeds = paces.list_paces(conn, BULK_LANE)
    shown = [ShownWorker(known, known.state_at(now)) for known in found[:_ON_A_PAGE]]
    alive = [one.known for one in shown if one.known.is_alive_at(now)]
    shown.sort(key=lambda one: (_STATES.index(one.state), one.known.card.host))
    return visit.render(
        "fleet_live.html" if visit.is_poll else "fleet.html",
        workers=shown,
        totals=_totals(alive),
        lanes=lanes_of(alive),
        backlogs=backlogs_of(running, speeds),
        after=after,
        has_more=len(found) > _ON_A_PAGE,
        last_id=found[_ON_A_PAGE - 1].card.worker_id if len(found) > _ON_A_PAGE else None,
        poll_s=_POLL_S,
    )


def lanes_of(alive: Iterable[KnownWorker]) -> list[ShownLane]:
    """Each Worker counts where it listens first."""
    by_name: dict[str, list[KnownWorker]] = {}
    for known in alive:
        for name in known.card.lanes[:1]:
            by_name.setdefault(name, []).append(known)
    return [
        ShownLane(
            name,
            len(found),
            sum(known.beat.num_rows for known in found),
            sum(known.beat.tokens_per_s for known in found),
        )
        for name, found in sorted(by_name.items())
    ]


def backlogs_of(running: Iterable[RunningBatch], speeds: Sequence[Pace]) -> list[Backlog]:
    """By model, the longest first."""
    by_model: dict[str, list[RunningBatch]] = {}
    for batch in running:
        by_model.setdefault(batch.model_name, []).append(batch)
    by_name = {pace.model_name: pace for pace in speeds}
    found = [
        _backlog(name, batches, by_name.get(name)) for name, batches in sorted(by_model.items())
    ]
    return sorted(found, key=lambda backlog: -backlog.tokens)


def _backlog(model: str, batches: Sequence[RunningBatch], pace: Pace | None) -> Backlog:
    tokens = sum(
        tokens_left(
            expected_tokens=batch.expected_tokens,
            total=batch.total,
            completed=batch.completed,
            failed=batch.failed,
            used_tokens=batch.used_tokens,
        )
        for batch in batches
    )
    rows = sum(batch.total - batch.completed - batch.failed for batch in batches)
    speed = pace.tokens_per_s if pace else None
    heard_at = pace.heard_at if pace else None
    return Backlog(model, len(batches), rows, int(tokens), speed, heard_at)


def _totals(alive: Sequence[KnownWorker]) -> Totals:
    return Totals(
        num_alive=len(alive),
        num_rows=sum(known.beat.num_rows for known in alive),
        tokens_per_s=sum(known.beat.tokens_per_s for known in alive),
        kv_used_tokens=sum(known.beat.kv_used_tokens for known in alive),
        kv_tokens=sum(known.card.kv_tokens or 0 for known in alive),
    )


ROUTES = [Route("/fleet", page(show_fleet, Scope.ADMIN))]
