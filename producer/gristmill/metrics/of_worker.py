"""The metrics that a Worker tells: its rows, its steps, its Leases."""

from __future__ import annotations

from gristmill.metrics.metric import Metric, counter, gauge, histogram

_FIRST_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 900.0),
)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_WAIT_S = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
_TOKENS = (1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

WORKER_METRICS: tuple[Metric, ...] = (
    histogram(
        "gristmill_ttft_seconds",
        "model",
        help="Time to first token: from a row's entry into the engine to its first token.",
        buckets=_FIRST_TOKEN_S,
    ),
    histogram(
        "gristmill_itl_seconds",
        "model",
        help="Inter-token latency: mean time between the tokens of a row, once for each row.",
        buckets=_TOKEN_S,
    ),
    histogram(
        "gristmill_row_wait_seconds",
        "model",
        help="Wait in the engine: from a row's entry to its first step.",
        buckets=_WAIT_S,
    ),
    counter(
        "gristmill_jobs_finished_total",
        "model",
        "finish_reason",
        help="Jobs that this worker finished; finish_reason is stop, length or error.",
    ),
    counter(
        "gristmill_tokens_total",
        "model",
        "kind",
        help="Tokens by kind: prompt_computed, prompt_cached (found in the prefix cache), "
        "generated, resumed (decoded by an earlier attempt and taken over).",
    ),
    counter(
        "gristmill_prefix_cache_lookups_total",
        "model",
        help="Answers for whose prompts the prefix cache was asked.",
    ),
    counter(
        "gristmill_prefix_cache_hits_total",
        "model",
        help="Answers of whose prompts the prefix cache held the beginning.",
    ),
    histogram("gristmill_step_seconds", "model", help="How long a step takes.", buckets=_STEP_S),
    histogram(
        "gristmill_step_rows",
        "model",
        help="Batch size: rows that a step computes.",
        buckets=_ROWS,
    ),
    histogram(
        "gristmill_step_tokens",
        "model",
        help="Tokens that a step computes, of prompts and answers.",
        buckets=_TOKENS,
    ),
    gauge("gristmill_running_rows", "model", help="Rows that have a place in the KV cache."),
    gauge(
        "gristmill_waiting_rows",
        "model",
        help="Rows that the worker holds and that have no place in the KV cache.",
    ),
    gauge("gristmill_kv_used_tokens", "model", help="Tokens of the KV cache that are in use."),
    gauge("gristmill_kv_capacity_tokens", "model", help="Tokens that the KV cache can hold."),
    counter(
        "gristmill_preemptions_total",
        "model",
        help="Rows that lost their place in the KV cache and are computed again.",
    ),
    gauge(
        "gristmill_worker_state",
        "model",
        "state",
        help="1 for the state that this worker is in, else 0: loading, ready, draining.",
    ),
    gauge("gristmill_leases", "model", help="Shards that this worker holds."),
    counter(
        "gristmill_attempts_total",
        "model",
        "reason",
        help="Attempts that are over; reason is done, drained, released, fenced or stopped.",
    ),
    counter(
        "gristmill_lease_losses_total",
        "model",
        help="Leases that ended while this worker held work of them.",
    ),
    counter(
        "gristmill_segments_stored_total", "model", help="Segments that this worker has stored."
    ),
    counter(
        "gristmill_machine_cost_total",
        "model",
        "currency",
        help="What this worker's machine has cost since it began, by "
        "GRISTMILL_MACHINE_PRICE_PER_HOUR; absent without that.",
    ),
)
