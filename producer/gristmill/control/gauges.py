"""Puts what the Ledger knows into gauges: the backlog, the batches, the fleet. Without tenants."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from sqlalchemy import Connection

from gristmill.control.backlog_times import BacklogTimes
from gristmill.control.base import Control
from gristmill.control.fleet_view import Kinds
from gristmill.control.namesakes import is_namesake
from gristmill.control.worker_speeds import WorkerSpeeds
from gristmill.errors import GristmillError
from gristmill.fleet import KnownWorker, WorkerState
from gristmill.ledger import backlog, models, usage, workers
from gristmill.ledger.shards import ShardState
from gristmill.ledger.status import OPEN
from gristmill.metrics.of_control import LEDGER_METRICS
from gristmill.pools import Fleet
from gristmill.queues.base import BULK_LANE
from gristmill.telemetry import Metrics
from gristmill.types import ModelPin

log = logging.getLogger(__name__)

#: However often somebody looks, the Ledger is asked no more often than so.
_FRESH_S = 5.0
_NAMES = tuple(metric.name for metric in LEDGER_METRICS)
#: Of those that are alive, and have another model than what is left to do under its name.
_UNFIT = "unfit"
_TOLD_STATES = (
    WorkerState.LOADING.value,
    WorkerState.READY.value,
    WorkerState.DRAINING.value,
    WorkerState.LOST.value,
    _UNFIT,
)


class LedgerGauges:
    """`put` may be called from any thread, before each look at the metrics."""

    def __init__(
        self,
        control: Control,
        metrics: Metrics,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._metrics = metrics
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._fresh_until = float("-inf")

    def put(self) -> None:
        """Everything anew. While the Ledger is away there are no values, rather than old ones."""
        with self._lock:
            if self._monotonic() < self._fresh_until:
                return
            self._metrics.forget(*_NAMES)
            try:
                fleet = self._control.fleet
                kinds = self._control.fleet_view.kinds(self._control.ledger, self._control.clock())
                with self._control.ledger.read() as conn:
                    self._put(conn, fleet, kinds)
            except GristmillError as error:
                log.warning("gauges not read reason=%s", error)
                self._metrics.forget(*_NAMES)
            self._fresh_until = self._monotonic() + _FRESH_S

    def _put(self, conn: Connection, fleet: Fleet, kinds: Kinds) -> None:
        now = self._control.clock()
        served = {model.name for model in models.list_served(conn, now=int(now))}
        self._put_batches(conn, now)
        self._put_costs(conn, now)
        known, wanted = workers.list_workers(conn), backlog.list_models(conn)
        there = {pin for worker in known for pin in worker.card.pins}
        unfit = {pin for pin in there if is_namesake(pin, wanted)}
        self._put_workers(known, now, served, unfit)
        assumed = self._control.settings.worker_tokens_per_s
        speeds = WorkerSpeeds(known, now, assumed=assumed, unfit=unfit)
        tokens = self._put_backlog(conn, served)
        times = BacklogTimes(tokens, kinds, fleet, speeds)
        put = self._metrics.put
        for of in tokens:
            put("gristmill_backlog_seconds", of, value=times.of_lane_s(*of))
            put("gristmill_backlog_worker_seconds", of, value=times.of_one_s(*of))
        for model in {model for _, model in tokens}:
            put("gristmill_backlog_model_seconds", (model,), value=times.of_model_s(model))

    def _put_batches(self, conn: Connection, now: float) -> None:
        found = {one.status: one for one in backlog.list_open(conn)}
        for status in OPEN:
            one = found.get(status)
            age_s = 0.0 if one is None else max(now - one.created_at, 0.0)
            self._metrics.put("gristmill_batches", (status.value,), value=one.num if one else 0)
            self._metrics.put("gristmill_oldest_batch_seconds", (status.value,), value=age_s)

    def _put_costs(self, conn: Connection, now: float) -> None:
        prices = self._control.prices
        if not prices:
            return
        yesterday = int(now) // usage.DAY_S - 1
        for model, used in usage.sum_by_model(conn, since_day=yesterday).items():
            price, num_tokens = prices.find(model), used.prompt_tokens + used.completion_tokens
            if price is not None and num_tokens:
                cost = float(price.cost(used)) / num_tokens * 1e6
                labels = (model, prices.currency)
                self._metrics.put("gristmill_cost_per_million_tokens", labels, value=cost)

    def _put_workers(
        self,
        known: Iterable[KnownWorker],
        now: float,
        served: set[str],
        unfit: Collection[ModelPin],
    ) -> None:
        """How many of each model, or LoRA adapter, there are, by what they do."""
        counts: Counter[tuple[str, str]] = Counter()
        for worker in known:
            is_alive, state = worker.is_alive_at(now), worker.state_at(now).value
            for model in worker.card.pins:
                is_unfit = is_alive and model in unfit
                counts[model.name, _UNFIT if is_unfit else state] += 1
        for name in served | {name for name, _ in counts}:
            for state in _TOLD_STATES:
                self._metrics.put("gristmill_workers", (name, state), value=counts[name, state])

    def _put_backlog(self, conn: Connection, served: set[str]) -> Counter[tuple[str, str]]:
        """Tokens that are left, by Lane and model. What was not sent may go to any Lane, and
        counts for the mixed one."""
        tokens: Counter[tuple[str, str]] = Counter({(BULK_LANE, model): 0 for model in served})
        jobs: Counter[tuple[str, str]] = Counter(tokens)
        shards: Counter[tuple[str, str, ShardState]] = Counter()
        for found in backlog.list_waiting(conn):
            of = (found.lane or BULK_LANE, found.model_name)
            tokens[of] += found.num_tokens
            jobs[of] += found.num_jobs
            shards[(*of, found.state)] += found.num_shards
        for of, num_tokens in tokens.items():
            self._metrics.put("gristmill_backlog_tokens", of, value=num_tokens)
            self._metrics.put("gristmill_backlog_rows", of, value=jobs[of])
            for state in (ShardState.WAITING, ShardState.SENT):
                labels = (*of, state.value)
                self._metrics.put("gristmill_backlog_shards", labels, value=shards[(*of, state)])
        return tokens
