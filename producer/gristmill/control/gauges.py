"""Puts what the Ledger knows into gauges: the backlog, the batches, the fleet. Without tenants."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from sqlalchemy import Connection

from gristmill.control.base import Control
from gristmill.control.worker_speeds import WorkerSpeeds
from gristmill.errors import GristmillError
from gristmill.fleet import KnownWorker, WorkerState
from gristmill.ledger import backlog, models, usage, workers
from gristmill.ledger.shards import ShardState
from gristmill.ledger.status import OPEN
from gristmill.metrics.of_control import LEDGER_METRICS
from gristmill.queues.base import BULK_LANE
from gristmill.telemetry import Metrics

log = logging.getLogger(__name__)

#: However often somebody looks, the Ledger is asked no more often than so.
_FRESH_S = 5.0
_NAMES = tuple(metric.name for metric in LEDGER_METRICS)
_TOLD_STATES = (WorkerState.LOADING, WorkerState.READY, WorkerState.DRAINING, WorkerState.LOST)


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
                with self._control.ledger.read() as conn:
                    self._put(conn)
            except GristmillError as error:
                log.warning("gauges not read reason=%s", error)
                self._metrics.forget(*_NAMES)
            self._fresh_until = self._monotonic() + _FRESH_S

    def _put(self, conn: Connection) -> None:
        now = self._control.clock()
        served = {model.name for model in models.list_served(conn, now=int(now))}
        self._put_batches(conn, now)
        self._put_costs(conn, now)
        known = workers.list_workers(conn)
        self._put_workers(known, now, served)
        speeds = WorkerSpeeds(known, now, assumed=self._control.settings.worker_tokens_per_s)
        for (lane, model), num_tokens in self._put_backlog(conn, served).items():
            of_one_s = num_tokens / speeds.of_one(lane, model)
            together_s = of_one_s / max(speeds.num_alive(lane, model), 1)
            self._metrics.put("gristmill_backlog_seconds", (lane, model), value=together_s)
            self._metrics.put("gristmill_backlog_worker_seconds", (lane, model), value=of_one_s)

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

    def _put_workers(self, known: Iterable[KnownWorker], now: float, served: set[str]) -> None:
        """How many of each model there are, by what they do."""
        counts: Counter[tuple[str, WorkerState]] = Counter(
            (worker.card.model.name, worker.state_at(now)) for worker in known
        )
        for model in served | {model for model, _ in counts}:
            for state in _TOLD_STATES:
                labels = (model, state.value)
                self._metrics.put("gristmill_workers", labels, value=counts[model, state])

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
