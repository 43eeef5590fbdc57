"""The fleet as the Ledger knows it, read every few seconds however often it is asked."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from sqlalchemy import Connection

from gristmill.fleet import ModelKey
from gristmill.ledger import size_classes, turns, workers
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.size_classes import Kind
from gristmill.pools import Fleet, fleet_of
from gristmill.types import ModelPin

Kinds = tuple[Kind, ...]
#: How old what is told may be: seconds, and so many times what it takes to read it.
_FRESH_S, _FRESH_TIMES = 2.0, 20.0
#: For so long nothing is sent to a Lane that took nothing.
_SHUT_S = 20.0


class FleetView:
    """Any thread may call any method."""

    def __init__(self, *, is_sole: bool = False) -> None:
        """`is_sole`: no worker tells this process what it is, whatever the Ledger has heard of
        before: there is one, in this process, or they tell others."""
        self.is_sole = is_sole
        self._lock = threading.Lock()
        self._fresh_s = _FRESH_S
        self._read_at = float("-inf")
        self._fleet = Fleet()
        self._left: dict[ModelKey, int] = {}
        self._kinds: Kinds = ()
        #: Of the running batches that these two are of; and until when they are not read again for
        #: a batch that is new.
        self._newest, self._num_running = 0, 0
        self._looks_at = float("-inf")
        #: What the Workers have that are alive, as of the last reading.
        self.pins_alive: frozenset[ModelPin] = frozenset()
        #: Lanes of pools that are gone, which were taken off the queue.
        self.removed_lanes: set[str] = set()
        self._shut_until: dict[str, float] = {}

    def shut(self, lane: str, now: float) -> None:
        """It took nothing, and is left out for a while."""
        with self._lock:
            still = {name: at for name, at in self._shut_until.items() if at > now}
            self._shut_until = {**still, lane: now + _SHUT_S}

    def is_shut(self, lane: str, now: float) -> bool:
        return 0 < self._shut_until.get(lane, now) - now <= _SHUT_S

    def fleet(self, ledger: Ledger, now: float, *, max_row_tokens: int = 0) -> Fleet:
        """Of the Workers that were heard of within a day, and of what the operator says that one
        takes at most."""
        with self._lock:
            self._read_if_due(ledger, now)
            if self.is_sole or not max_row_tokens:
                return self._fleet
            return replace(self._fleet, max_row_tokens=max_row_tokens)

    def tokens_left(self, ledger: Ledger, now: float) -> dict[ModelKey, int]:
        """By model, of the rows of all running batches that have no answer yet.

        Empty while there is only one Lane, which nothing is weighed against.
        """
        with self._lock:
            self._read_if_due(ledger, now)
            self._read_what_is_new(ledger, now)
            return self._left

    def kinds(self, ledger: Ledger, now: float) -> Kinds:
        """The size classes that wait, by model, those of a batch that has just begun to run too;
        empty while there is only one Lane."""
        with self._lock:
            self._read_if_due(ledger, now)
            self._read_what_is_new(ledger, now)
            return self._kinds

    def _read_if_due(self, ledger: Ledger, now: float) -> None:
        if self.is_sole or 0 <= now - self._read_at < self._fresh_s:
            return
        began = time.perf_counter()
        with ledger.read() as conn:
            known = workers.list_workers(conn)
            self._fleet = fleet_of(known, now)
            alive = [worker.card for worker in known if worker.is_alive_at(now)]
            self.pins_alive = frozenset(pin for card in alive for pin in card.pins)
            self._left, self._kinds = {}, ()
            if self._is_mixed:
                self._read_waiting(conn, now)
        self._read_at = now
        self._fresh_s = max(_FRESH_S, _FRESH_TIMES * (time.perf_counter() - began))

    @property
    def _is_mixed(self) -> bool:
        return len(self._fleet.lanes) > 1

    def _read_what_is_new(self, ledger: Ledger, now: float) -> None:
        """A batch that begins to run shall not wait until all is read again."""
        if self.is_sole or not self._is_mixed or now < self._looks_at:
            return
        with ledger.read() as conn:
            newest, num_running = turns.newest_running(conn)
            if newest > self._newest or num_running > self._num_running:
                self._read_waiting(conn, now)

    def _read_waiting(self, conn: Connection, now: float) -> None:
        began = time.perf_counter()
        self._newest, self._num_running = turns.newest_running(conn)
        self._left = turns.tokens_left(conn)
        self._kinds = tuple(size_classes.list_kinds(conn))
        self._looks_at = now + _FRESH_TIMES * (time.perf_counter() - began)
