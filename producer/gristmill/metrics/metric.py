"""What a metric is: a name, its kind, who tells it, its labels. The tables stand beside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Process(StrEnum):
    """Which process tells a metric. `gristmill up` is all three."""

    WORKER = "worker"
    CONTROL = "control"
    API = "api"


@dataclass(frozen=True, slots=True)
class Metric:
    """One name. A counter's ends in `_total`; a histogram has `_bucket`, `_sum` and `_count`.

    `buckets` are upper bounds, in the unit that the name ends with.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    processes: tuple[Process, ...] = ()


def counter(name: str, *labels: str, help: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, help)


def gauge(name: str, *labels: str, help: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, help)


def histogram(name: str, *labels: str, help: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, labels, help, buckets)
