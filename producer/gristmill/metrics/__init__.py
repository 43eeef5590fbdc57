"""The one table of metrics: name, kind, labels, help, buckets. It records nothing itself.

Dashboards, alerts and autoscaling name only what stands here. Labels are bounded: names of models,
Lanes and API routes, and closed sets of words; never a tenant, a batch, a row or a caller's text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gristmill.metrics.metric import Kind, Metric, Process
from gristmill.metrics.of_api import API_METRICS, COMMON_METRICS, RETRY_METRICS
from gristmill.metrics.of_control import CONTROL_METRICS, LEDGER_METRICS
from gristmill.metrics.of_worker import WORKER_METRICS

__all__ = ["METRICS", "Kind", "Metric", "Process", "find_metric", "metrics_of"]


def _told_by(metrics: tuple[Metric, ...], *processes: Process) -> Iterator[Metric]:
    return (replace(metric, processes=processes) for metric in metrics)


#: In the order of the life of a row, from the processes that run it to those that tell of it.
METRICS: tuple[Metric, ...] = (
    *_told_by(WORKER_METRICS, Process.WORKER),
    *_told_by(RETRY_METRICS, Process.WORKER, Process.CONTROL),
    *_told_by(LEDGER_METRICS, Process.CONTROL),
    *_told_by(CONTROL_METRICS, Process.CONTROL),
    *_told_by(API_METRICS, Process.API),
    *_told_by(COMMON_METRICS, *Process),
)

_BY_NAME = {metric.name: metric for metric in METRICS}


def find_metric(name: str) -> Metric:
    """Raises KeyError for a name that is not in the table."""
    return _BY_NAME[name]


def metrics_of(*processes: Process) -> tuple[Metric, ...]:
    """What any of these processes tells."""
    return tuple(metric for metric in METRICS if set(processes) & set(metric.processes))
