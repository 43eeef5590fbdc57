"""The page of the fleet: which Workers are alive, how full they are, what waits for them.

It shows machines and sums over all tenants, no batch and no name of any; for the scope `operator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from gristmill.api.access import Scope
from gristmill.api.workers import list_workers
from gristmill.dashboard.visit import Visit, page
from gristmill.fleet import KnownWorker, WorkerState
from gristmill.ledger import backlog, paces, workers
from gristmill.ledger.backlog import Waiting
from gristmill.ledger.paces import Pace
from gristmill.ledger.shards import ShardState
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
class ShownLane:
    """A Lane, for one model: who listens there first, and what is left to do.

    Work that was not sent yet may go to any Lane, and counts for the mixed one, as in the metrics.
    """

    lane: str
    model: str
    num_workers: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    num_waiting_shards: int = 0
    num_sent_shards: int = 0
    #: Of all workers of the model together.
    tokens_per_s: float | None = None

    @property
    def seconds(self) -> float | None:
        return self.num_tokens / self.tokens_per_s if self.tokens_per_s else None


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all Workers that are alive, on whichever page."""

    num_alive: int
    num_rows: int
    tokens_per_s: float
    kv_used_tokens: int
    kv_tokens: int


def show_fleet(visit: Visit) -> Response:
    after = visit.asked("after")
    found = list_workers(visit.api, visit.caller, after=after, limit=_ON_A_PAGE, include_ended=True)
    with visit.api.ledger.read() as conn:
        waiting = backlog.list_waiting(conn)
        speeds = paces.list_paces(conn, BULK_LANE)
        alive = workers.list_alive(conn, visit.api.clock())
    return visit.render(
        "fleet_live.html" if visit.is_poll else "fleet.html",
        workers=sorted(found.data, key=lambda worker: (_STATES.index(worker.state), worker.host)),
        totals=_totals(alive),
        lanes=lanes_of(alive, waiting, speeds),
        after=after,
        has_more=found.has_more,
        last_id=found.last_id,
        poll_s=_POLL_S,
    )


def lanes_of(
    alive: Iterable[KnownWorker], waiting: Iterable[Waiting], speeds: Iterable[Pace]
) -> list[ShownLane]:
    """Those that have work or workers, the longest first."""
    listeners: dict[tuple[str, str], int] = {}
    for card in (known.card for known in alive):
        for lane in card.lanes[:1]:
            listeners[lane, card.model.name] = listeners.get((lane, card.model.name), 0) + 1
    left: dict[tuple[str, str], list[Waiting]] = {}
    for one in waiting:
        left.setdefault((one.lane or BULK_LANE, one.model_name), []).append(one)
    paces_by_model = {pace.model_name: pace.tokens_per_s for pace in speeds}
    lanes = [
        _lane(key, listeners.get(key, 0), left.get(key, []), paces_by_model.get(key[1]))
        for key in sorted({*listeners, *left})
    ]
    return sorted(lanes, key=lambda lane: -lane.num_tokens)


def _lane(
    key: tuple[str, str], num_workers: int, left: Sequence[Waiting], tokens_per_s: float | None
) -> ShownLane:
    def shards(state: ShardState) -> int:
        return sum(one.num_shards for one in left if one.state is state)

    return ShownLane(
        *key,
        num_workers=num_workers,
        num_rows=sum(one.num_jobs for one in left),
        num_tokens=sum(one.num_tokens for one in left),
        num_waiting_shards=shards(ShardState.WAITING),
        num_sent_shards=shards(ShardState.SENT),
        tokens_per_s=tokens_per_s,
    )


def _totals(alive: Sequence[KnownWorker]) -> Totals:
    return Totals(
        num_alive=len(alive),
        num_rows=sum(known.beat.num_rows for known in alive),
        tokens_per_s=sum(known.beat.tokens_per_s for known in alive),
        kv_used_tokens=sum(known.beat.kv_used_tokens for known in alive),
        kv_tokens=sum(known.card.kv_tokens or 0 for known in alive),
    )


ROUTES = [Route("/fleet", page(show_fleet, Scope.OPERATOR))]
