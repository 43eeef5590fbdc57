"""When batches will be done, and what they wait for: from what is left and what workers accomplish.

Reads the Ledger every few seconds at most, however often it is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from gristmill.control.blocked import Blocked, find_blocked
from gristmill.control.budget import tokens_left
from gristmill.control.fleet_view import FleetView
from gristmill.control.namesakes import tell_namesake
from gristmill.ledger import paces, turns
from gristmill.ledger.batch import Batch
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.paces import Pace
from gristmill.ledger.status import OPEN, BatchStatus
from gristmill.ledger.turns import RunningBatch
from gristmill.pools import Fleet, is_of_model
from gristmill.queues.base import BULK_LANE

#: How old what is told may be; a batch that is newer than that is looked for at once.
_FRESH_S, _FRESH_FOR_NEW_S = 2.0, 0.2
#: Workers that hold something are heard of more often than that.
NO_SIGN_S = 90.0


class Phase(StrEnum):
    """What a batch does just now, or what it waits for."""

    VALIDATING = "validating"
    QUEUED = "queued"
    NO_WORKER = "no_worker"
    RUNNING = "running"
    FINALIZING = "finalizing"


@dataclass(frozen=True, slots=True)
class Progress:
    """Of a batch that has not ended. `tokens_per_s` is what the workers of its model accomplish."""

    phase: Phase
    detail: str
    #: Batches of the same tenant that go first.
    num_ahead: int = 0
    tokens_per_s: float | None = None
    #: Unix time, if all goes on like this and nothing more is asked for.
    completes_at: int | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    num_ahead: int
    #: Tokens of its tenant until it is done, those of the batches in front of it too.
    tokens_through: float
    is_out: bool


@dataclass(frozen=True, slots=True)
class _Model:
    """The batches of one model."""

    places: dict[str, _Place] = field(default_factory=dict)
    #: By tenant: tokens that are left.
    totals: dict[str, float] = field(default_factory=dict)


class Outlook:
    """Any thread may call any method."""

    def __init__(
        self, ledger: Ledger, clock: Callable[[], float], *, max_row_tokens: int = 0
    ) -> None:
        """`max_row_tokens` is what the operator says that a machine takes at most; 0: nothing."""
        self._ledger = ledger
        self._max_row_tokens = max_row_tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._models: dict[str, _Model] = {}
        self._paces: dict[str, Pace] = {}
        self._fleet_view = FleetView()
        self._fleet = Fleet()
        self._blocked: dict[str, Blocked] = {}

    def of(self, batch: Batch) -> Progress | None:
        """None for a batch that has ended."""
        if batch.status not in OPEN:
            return None
        if batch.status is BatchStatus.CANCELLING or batch.freeze_reason is not None:
            return Progress(Phase.FINALIZING, "Its result files are being written.")
        if batch.status is BatchStatus.VALIDATING:
            return Progress(Phase.VALIDATING, "Its input file waits to be read, or is being read.")
        return self._of_running(batch)

    def _of_running(self, batch: Batch) -> Progress:
        name, now = batch.model.name, self._clock()
        place, blocked = self._find(batch, now)
        if blocked is not None and blocked.is_all and not place.is_out:
            return self._waits(batch, place, blocked.reason)
        pace = self._paces.get(name)
        began_at = float(batch.in_progress_at or 0)
        last_sign = max(pace.heard_at if pace else 0.0, began_at)
        if now - last_sign > NO_SIGN_S:
            silence = f"No worker of the model {name} was heard of for {now - last_sign:.0f} s."
            return self._waits(batch, place, silence, *([blocked.reason] if blocked else []))
        has_done_something = batch.completed > 0 or last_sign > began_at
        has_worker = any(is_of_model(p.pool, batch.model) for p in self._fleet.pools)
        if not (has_done_something or has_worker):
            return self._waits(batch, place, self._who_is_missing(batch, now))
        tokens_per_s = pace.tokens_per_s if pace else None
        completes_at = None
        if tokens_per_s:
            completes_at = int(now + self._work_until(name, place) / tokens_per_s) + 1
        # Between two of its Shards it runs too.
        has_begun = batch.completed > 0 and not place.num_ahead
        if not (place.is_out or has_begun):
            first = (
                f"{place.num_ahead} of your batches go" if place.num_ahead else "other work goes"
            )
            detail = f"It waits for its turn: {first} first."
            return Progress(Phase.QUEUED, detail, place.num_ahead, tokens_per_s, completes_at)
        speed = "not measured yet" if tokens_per_s is None else f"{tokens_per_s:.0f} tokens/s"
        detail = f"It runs; the workers of its model accomplish together: {speed}."
        if blocked is not None:
            detail = f"{detail} A part of it does not run: {blocked.reason}"
        return Progress(
            Phase.RUNNING,
            detail,
            place.num_ahead,
            tokens_per_s,
            completes_at,
        )

    def _waits(self, batch: Batch, place: _Place, *reasons: str) -> Progress:
        hint = tell_namesake(batch.model, self._fleet_view.pins_alive)
        return Progress(Phase.NO_WORKER, " ".join(filter(None, (*reasons, hint))), place.num_ahead)

    def _who_is_missing(self, batch: Batch, now: float) -> str:
        """While nobody takes work of its model."""
        fleet, name = self._fleet, batch.model.name
        heard = [k.heard_at for k in fleet.known if is_of_model(k.pool, batch.model)]
        if any(is_of_model(one.model, batch.model) for one in fleet.loading):
            return f"It waits for a machine of the model {name}: one is loading."
        if heard:
            ago_s = max(now - max(heard), 0)
            return (
                f"It waits for a machine of the model {name}: one was heard of {ago_s:.0f} s ago."
            )
        return f"It waits for a machine of the model {name}: no worker has announced itself."

    def _work_until(self, name: str, place: _Place) -> float:
        """Tokens until the batch is done, when each tenant gets the same share."""
        totals = self._models[name].totals if name in self._models else {}
        return sum(min(total, place.tokens_through) for total in totals.values())

    def _find(self, batch: Batch, now: float) -> tuple[_Place, Blocked | None]:
        with self._lock:
            age_s = now - self._read_at
            model = self._models.get(batch.model.name)
            is_known = model is not None and batch.id in model.places
            if not 0 <= age_s < (_FRESH_S if is_known else _FRESH_FOR_NEW_S):
                self._read(now)
            model = self._models.get(batch.model.name, _Model())
            place = model.places.get(batch.id, _Place(0, 0.0, is_out=False))
            return place, self._blocked.get(batch.id)

    def _read(self, now: float) -> None:
        with self._ledger.read() as conn:
            running = turns.list_running(conn)
            found = paces.list_paces(conn, BULK_LANE)
        fleet = self._fleet_view.fleet(self._ledger, now, max_row_tokens=self._max_row_tokens)
        self._fleet = fleet
        self._blocked = find_blocked(self._ledger, fleet, now=now)
        self._paces = {pace.model_name: pace for pace in found}
        stuck = {batch_id for batch_id, blocked in self._blocked.items() if blocked.is_all}
        self._models = _by_model(running, stuck)
        self._read_at = now


def _by_model(running: Iterable[RunningBatch], stuck: Collection[str]) -> dict[str, _Model]:
    """`running` is in the order of turns, tenant by tenant. Nobody waits for `stuck` batches, which
    themselves wait for a machine."""
    models: dict[str, _Model] = {}
    num_ahead: dict[tuple[str, str], int] = {}
    for batch in running:
        model = models.setdefault(batch.model_name, _Model())
        key = (batch.model_name, batch.tenant_id)
        if batch.id in stuck and not batch.is_out:
            model.places[batch.id] = _Place(num_ahead.get(key, 0), 0.0, is_out=False)
            continue
        left = tokens_left(
            expected_tokens=batch.expected_tokens,
            total=batch.total,
            completed=batch.completed,
            failed=batch.failed,
            used_tokens=batch.used_tokens,
        )
        through = model.totals.get(batch.tenant_id, 0.0) + left
        model.totals[batch.tenant_id] = through
        model.places[batch.id] = _Place(num_ahead.get(key, 0), through, batch.is_out)
        num_ahead[key] = num_ahead.get(key, 0) + 1
    return models
