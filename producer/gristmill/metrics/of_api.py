"""The metrics that the API tells, and those that every process does."""

from __future__ import annotations

from gristmill.metrics.metric import Metric, counter, gauge, histogram

_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

API_METRICS: tuple[Metric, ...] = (
    counter(
        "gristmill_api_requests_total",
        "method",
        "route",
        "status",
        help="Requests that were answered; route is the path's pattern, status the HTTP code.",
    ),
    histogram(
        "gristmill_api_request_seconds",
        "method",
        "route",
        help="From a request's arrival to the end of its answer.",
        buckets=_REQUEST_S,
    ),
    gauge(
        "gristmill_api_requests_in_progress",
        help="Requests that are being answered just now.",
    ),
)

#: Of workers and control processes.
RETRY_METRICS: tuple[Metric, ...] = (
    counter(
        "gristmill_retries_total",
        "operation",
        help="Work that was done again after a failure; operation is store (a worker's write), "
        "queue (a worker's message), control (a turn of the control side), shard (rung again, "
        "since it was silent).",
    ),
)

COMMON_METRICS: tuple[Metric, ...] = (
    gauge(
        "gristmill_troubles",
        "process",
        help="Outages that a process waits out just now; process is worker, control, api or up.",
    ),
    gauge(
        "gristmill_build_info",
        "process",
        "version",
        help="Always 1: the version of Gristmill that runs; process as in gristmill_troubles.",
    ),
)
