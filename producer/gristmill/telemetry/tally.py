"""Counters, gauges and histograms as plain numbers, added up where things happen.

Recording is a few hundred nanoseconds and imports nothing; whoever shows the numbers turns them
into the form of Prometheus then (process/exposition.py).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Protocol

from gristmill.metrics import Kind, Metric, Process, metrics_of

#: The values of a metric's labels, in the order of the table.
Labels = tuple[str, ...]
#: Most combinations of labels that one metric has; what comes beyond is not told.
MAX_SERIES = 1000


class Metrics(Protocol):
    """Names and labels are those of gristmill/metrics. Any thread may call any method."""

    @property
    def is_on(self) -> bool:
        """Whether anybody may ever look; where it is costly to find a value, ask first."""

    def add(self, name: str, labels: Labels = (), *, by: float = 1.0) -> None:
        """To a counter."""

    def observe(self, name: str, labels: Labels = (), *values: float) -> None:
        """Into a histogram; many at once are cheaper than one by one."""

    def put(self, name: str, labels: Labels = (), *, value: float) -> None:
        """A gauge is this now, or a counter has come to this."""

    def forget(self, *names: str) -> None:
        """All values of these gauges: what is not put anew is there no longer."""

    def on_look(self, read: Callable[[], None]) -> None:
        """`read` is called before each look, to put what is known only then."""


class _Nowhere:
    is_on = False

    def add(self, name: str, labels: Labels = (), *, by: float = 1.0) -> None:
        pass

    def observe(self, name: str, labels: Labels = (), *values: float) -> None:
        pass

    def put(self, name: str, labels: Labels = (), *, value: float) -> None:
        pass

    def forget(self, *names: str) -> None:
        pass

    def on_look(self, read: Callable[[], None]) -> None:
        pass


NO_METRICS: Metrics = _Nowhere()


@dataclass(slots=True)
class Distribution:
    """`counts[i]` were in the i-th bucket (counts[-1] above all bounds), not cumulated."""

    counts: list[int]
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """A metric as it stands: a number or a Distribution for each combination of labels."""

    metric: Metric
    values: dict[Labels, float | Distribution]


class Tally:
    """The Metrics of a process, or of several processes in one."""

    is_on = True

    def __init__(self, *processes: Process) -> None:
        self._lock = threading.Lock()
        self._metrics = {metric.name: metric for metric in metrics_of(*processes)}
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._distributions: dict[str, dict[Labels, Distribution]] = {}
        for metric in self._metrics.values():
            if metric.kind is Kind.HISTOGRAM:
                self._distributions[metric.name] = {}
            else:
                self._numbers[metric.name] = {}
        self._readers: list[Callable[[], None]] = []

    def add(self, name: str, labels: Labels = (), *, by: float = 1.0) -> None:
        numbers = self._numbers[name]
        with self._lock:
            if labels in numbers:
                numbers[labels] += by
            elif self._may_begin(name, labels, numbers):
                numbers[labels] = by

    def put(self, name: str, labels: Labels = (), *, value: float) -> None:
        numbers = self._numbers[name]
        with self._lock:
            if labels in numbers or self._may_begin(name, labels, numbers):
                numbers[labels] = value

    def observe(self, name: str, labels: Labels = (), *values: float) -> None:
        found = self._distributions[name]
        bounds = self._metrics[name].buckets
        with self._lock:
            distribution = found.get(labels)
            if distribution is None:
                if not self._may_begin(name, labels, found):
                    return
                distribution = found[labels] = Distribution([0] * (len(bounds) + 1))
            for value in values:
                distribution.counts[bisect_left(bounds, value)] += 1
            distribution.total += sum(values)

    def forget(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._numbers[name].clear()

    def on_look(self, read: Callable[[], None]) -> None:
        self._readers.append(read)

    def look(self) -> list[Series]:
        """All that was recorded so far, in the order of the table."""
        for read in self._readers:
            read()
        with self._lock:
            return [Series(metric, self._values(metric.name)) for metric in self._metrics.values()]

    def _values(self, name: str) -> dict[Labels, float | Distribution]:
        if name in self._numbers:
            return dict(self._numbers[name])
        return {
            labels: Distribution(list(found.counts), found.total)
            for labels, found in self._distributions[name].items()
        }

    def _may_begin(self, name: str, labels: Labels, series: Sized) -> bool:
        expected = self._metrics[name].labels
        assert len(labels) == len(expected), f"{name} has the labels {expected}, not {labels}"
        return len(series) < MAX_SERIES
