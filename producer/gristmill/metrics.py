"""The one table of metrics: name, kind, labels, help, buckets. It records nothing itself.

Dashboards, alerts and autoscaling name only what stands here. Labels are bounded: names of models,
Lanes and API routes, and closed sets of words; never a tenant, a batch, a row or a caller's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["METRICS", "Kind", "Metric", "Process", "find_metric", "metrics_of"]


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
    processes: tuple[Process, ...]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_W, _C, _A = (Process.WORKER,), (Process.CONTROL,), (Process.API,)
_ALL = (Process.WORKER, Process.CONTROL, Process.API)
_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

_FIRST_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 900.0),
)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_WAIT_S = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_WORK_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
_TOKENS = (1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

#: In the order of the life of a row, from the processes that run it to those that tell of it.
METRICS: tuple[Metric, ...] = (
    # Rows in the Engine
    Metric(
        "gristmill_ttft_seconds",
        _HISTOGRAM,
        _W,
        ("model",),
        "Time to first token: from a row's entry into the engine to its first token.",
        _FIRST_TOKEN_S,
    ),
    Metric(
        "gristmill_itl_seconds",
        _HISTOGRAM,
        _W,
        ("model",),
        "Inter-token latency: mean time between the tokens of a row, one observation for each row.",
        _TOKEN_S,
    ),
    Metric(
        "gristmill_row_wait_seconds",
        _HISTOGRAM,
        _W,
        ("model",),
        "Wait in the engine: from a row's entry to its first step.",
        _WAIT_S,
    ),
    Metric(
        "gristmill_jobs_finished_total",
        _COUNTER,
        _W,
        ("model", "finish_reason"),
        "Jobs that this worker finished; finish_reason is stop, length or error.",
    ),
    Metric(
        "gristmill_tokens_total",
        _COUNTER,
        _W,
        ("model", "kind"),
        "Tokens by kind: prompt_computed, prompt_cached (found in the prefix cache), generated, "
        "resumed (decoded by an earlier attempt and taken over).",
    ),
    Metric(
        "gristmill_prefix_cache_lookups_total",
        _COUNTER,
        _W,
        ("model",),
        "Finished rows, of each of which the prefix cache was asked.",
    ),
    Metric(
        "gristmill_prefix_cache_hits_total",
        _COUNTER,
        _W,
        ("model",),
        "Finished rows of which the prefix cache held the beginning.",
    ),
    # Steps
    Metric("gristmill_step_seconds", _HISTOGRAM, _W, ("model",), "How long a step takes.", _STEP_S),
    Metric(
        "gristmill_step_rows",
        _HISTOGRAM,
        _W,
        ("model",),
        "Batch size: rows that a step computes.",
        _ROWS,
    ),
    Metric(
        "gristmill_step_tokens",
        _HISTOGRAM,
        _W,
        ("model",),
        "Tokens that a step computes, of prompts and answers.",
        _TOKENS,
    ),
    Metric("gristmill_running_rows", _GAUGE, _W, ("model",), "Rows that the newest step computed."),
    Metric(
        "gristmill_waiting_rows",
        _GAUGE,
        _W,
        ("model",),
        "Rows that the worker holds and no step computes yet.",
    ),
    Metric("gristmill_kv_used_tokens", _GAUGE, _W, ("model",), "Tokens in use of the KV cache."),
    Metric("gristmill_kv_capacity_tokens", _GAUGE, _W, ("model",), "Size of the KV cache."),
    Metric(
        "gristmill_preemptions_total",
        _COUNTER,
        _W,
        ("model",),
        "Rows that lost their place in the KV cache and are computed again.",
    ),
    # The Worker
    Metric(
        "gristmill_worker_state",
        _GAUGE,
        _W,
        ("model", "state"),
        "1 for the state that this worker is in, else 0: loading, ready, draining.",
    ),
    Metric(
        "gristmill_leases",
        _GAUGE,
        _W,
        ("model",),
        "Shards that this worker holds.",
    ),
    Metric(
        "gristmill_attempts_total",
        _COUNTER,
        _W,
        ("model", "reason"),
        "Attempts that are over; reason is done, drained, released, fenced or stopped.",
    ),
    Metric(
        "gristmill_lease_losses_total",
        _COUNTER,
        _W,
        ("model",),
        "Leases that ended while this worker held work of them.",
    ),
    Metric(
        "gristmill_segments_stored_total",
        _COUNTER,
        _W,
        ("model",),
        "Segments that this worker has stored.",
    ),
    Metric(
        "gristmill_machine_cost_total",
        _COUNTER,
        _W,
        ("model", "currency"),
        "What this worker's machine has cost since it began, by GRISTMILL_MACHINE_PRICE_PER_HOUR; "
        "absent without that.",
    ),
    # Any process
    Metric(
        "gristmill_retries_total",
        _COUNTER,
        (Process.WORKER, Process.CONTROL),
        ("operation",),
        "Work that was done again after a failure; operation is store (a worker's write), queue "
        "(a worker's message), control (a turn of the control side), shard (rung again, since it "
        "was silent).",
    ),
    Metric(
        "gristmill_troubles",
        _GAUGE,
        _ALL,
        ("process",),
        "Outages that a process waits out just now; process is worker, control or api.",
    ),
    Metric(
        "gristmill_build_info",
        _GAUGE,
        _ALL,
        ("process", "version"),
        "Always 1: the version of Gristmill that runs.",
    ),
    # The backlog, as the Ledger knows it: the same from every control process, so take the max
    Metric(
        "gristmill_backlog_tokens",
        _GAUGE,
        _C,
        ("lane", "model"),
        "Tokens that are left to do, of prompts and expected answers, sent to workers or not.",
    ),
    Metric(
        "gristmill_backlog_seconds",
        _GAUGE,
        _C,
        ("lane", "model"),
        "How long the workers that are alive need for the backlog; with none, a worker of the pace "
        "that was last measured, or of GRISTMILL_ASSUMED_TOKENS_PER_S.",
    ),
    Metric(
        "gristmill_backlog_rows",
        _GAUGE,
        _C,
        ("lane", "model"),
        "Rows of batches in progress that have no result yet.",
    ),
    Metric(
        "gristmill_backlog_shards",
        _GAUGE,
        _C,
        ("lane", "model", "state"),
        "Shards that are left to do; state is waiting (in the Ledger) or sent (to the queue).",
    ),
    Metric(
        "gristmill_batches",
        _GAUGE,
        _C,
        ("status",),
        "Batches that have not ended; status is validating, in_progress, finalizing, cancelling.",
    ),
    Metric(
        "gristmill_oldest_batch_seconds",
        _GAUGE,
        _C,
        ("status",),
        "Age of the oldest batch in a status, 0 with none; status as in gristmill_batches.",
    ),
    Metric(
        "gristmill_workers",
        _GAUGE,
        _C,
        ("model", "state"),
        "Workers that announced themselves; state is loading, ready, draining or lost.",
    ),
    # What control processes do: each tells its own part, so take the sum
    Metric(
        "gristmill_rows_ingested_total",
        _COUNTER,
        _C,
        ("model",),
        "Rows of input files that were read.",
    ),
    Metric(
        "gristmill_shards_sent_total",
        _COUNTER,
        _C,
        ("lane", "model"),
        "Shards that were sent to workers for the first time.",
    ),
    Metric(
        "gristmill_queue_wait_seconds",
        _HISTOGRAM,
        _C,
        ("model",),
        "Wait of a Shard in the queue: from its sending to the first sign of an attempt.",
        _WAIT_S,
    ),
    Metric(
        "gristmill_segments_accepted_total",
        _COUNTER,
        _C,
        ("model",),
        "Segments that were accepted.",
    ),
    Metric(
        "gristmill_rows_total",
        _COUNTER,
        _C,
        ("model", "outcome"),
        "Rows by outcome: completed, failed (as accepted), expired, cancelled, budget (as the end "
        "of their batch found them unanswered).",
    ),
    Metric(
        "gristmill_tokens_accepted_total",
        _COUNTER,
        _C,
        ("model", "kind"),
        "Tokens of accepted rows, as they are charged: prompt, cached (part of prompt), completion.",
    ),
    Metric(
        "gristmill_cost_total",
        _COUNTER,
        _C,
        ("model", "currency"),
        "What accepted rows cost, by GRISTMILL_PRICES; absent without a price.",
    ),
    Metric(
        "gristmill_cost_per_million_tokens",
        _GAUGE,
        _C,
        ("model", "currency"),
        "What a million tokens of the rows accepted so far cost, by GRISTMILL_PRICES; absent "
        "without a price.",
    ),
    Metric(
        "gristmill_batches_ended_total",
        _COUNTER,
        _C,
        ("status",),
        "Batches that ended; status is completed, failed, expired or cancelled.",
    ),
    Metric(
        "gristmill_webhook_deliveries_total",
        _COUNTER,
        _C,
        ("outcome",),
        "Tries to deliver a webhook: delivered, retried (it failed and is tried again), failed "
        "(nobody tries any more).",
    ),
    Metric(
        "gristmill_control_seconds",
        _HISTOGRAM,
        _C,
        ("task",),
        "How long a piece of the control side's work takes; task is ingest, dispatch, accept, "
        "sweep, finalize or webhooks. A count that stands still: nobody does it.",
        _WORK_S,
    ),
    # The API
    Metric(
        "gristmill_api_requests_total",
        _COUNTER,
        _A,
        ("method", "route", "status"),
        "Requests that were answered; route is the path's pattern, status the HTTP code.",
    ),
    Metric(
        "gristmill_api_request_seconds",
        _HISTOGRAM,
        _A,
        ("method", "route"),
        "From a request's arrival to the end of its answer.",
        _REQUEST_S,
    ),
    Metric(
        "gristmill_api_requests_in_progress",
        _GAUGE,
        _A,
        (),
        "Requests that are being answered just now.",
    ),
)

_BY_NAME = {metric.name: metric for metric in METRICS}


def find_metric(name: str) -> Metric:
    """Raises KeyError for a name that is not in the table."""
    return _BY_NAME[name]


def metrics_of(*processes: Process) -> tuple[Metric, ...]:
    """What any of these processes tells."""
    return tuple(metric for metric in METRICS if set(processes) & set(metric.processes))
