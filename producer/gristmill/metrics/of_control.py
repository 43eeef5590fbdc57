"""The metrics that the control side tells: the backlog and the fleet, and what it does itself."""

from __future__ import annotations

from gristmill.metrics.metric import Metric, counter, gauge, histogram

_WAIT_S = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_WORK_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: As the Ledger knows it, and so the same from every control process: take the max of several.
LEDGER_METRICS: tuple[Metric, ...] = (
    gauge(
        "gristmill_backlog_tokens",
        "lane",
        "model",
        help="Tokens left to do, of prompts and expected answers, sent to workers or not.",
    ),
    gauge(
        "gristmill_backlog_seconds",
        "lane",
        "model",
        help="How long the workers that load or take work need for the backlog together, those of "
        "its pool for the Lane of a pool; where none is, how long one would need. Lanes are worked "
        "off at the same time: do not add them up.",
    ),
    gauge(
        "gristmill_backlog_model_seconds",
        "model",
        help="How long these workers need for all Lanes of a model: all of them for all of it, and "
        "those that alone can do a part for that part, whichever takes longer.",
    ),
    gauge(
        "gristmill_backlog_worker_seconds",
        "lane",
        "model",
        help="How long a single worker would need for the backlog, by what workers of the last day "
        "got done while they worked, or else by GRISTMILL_WORKER_TOKENS_PER_S. Divided by the time "
        "it may take, it is the number of workers to have: scale on this.",
    ),
    gauge(
        "gristmill_backlog_rows",
        "lane",
        "model",
        help="Jobs of batches in progress that have no result yet (identical rows are one).",
    ),
    gauge(
        "gristmill_backlog_shards",
        "lane",
        "model",
        "state",
        help="Shards left to do; state is waiting (in the Ledger) or sent (to the queue).",
    ),
    gauge(
        "gristmill_batches",
        "status",
        help="Batches that have not ended; status is validating, in_progress, finalizing or "
        "cancelling.",
    ),
    gauge(
        "gristmill_oldest_batch_seconds",
        "status",
        help="Age of the oldest batch of a status, 0 with none; status as in gristmill_batches.",
    ),
    gauge(
        "gristmill_workers",
        "model",
        "state",
        help="Workers that announced themselves; state is loading, ready, draining, lost or unfit "
        "(alive with another revision, tokenizer or dtype than what is left to do of the model). "
        "One with LoRA adapters counts for each of them, too.",
    ),
    gauge(
        "gristmill_cost_per_million_tokens",
        "model",
        "currency",
        help="What a million tokens of the rows accepted today and yesterday (UTC) cost, prompts "
        "and answers together, by GRISTMILL_PRICES; absent without a price or such rows.",
    ),
)

#: Each control process tells what it did itself: take the sum of several.
CONTROL_METRICS: tuple[Metric, ...] = (
    counter("gristmill_rows_ingested_total", "model", help="Rows of input files that were read."),
    counter(
        "gristmill_shards_sent_total",
        "lane",
        "model",
        help="Shards that were sent to workers, not counting those rung again.",
    ),
    histogram(
        "gristmill_queue_wait_seconds",
        "model",
        help="Wait of a Shard in the queue: from its sending to the first sign of an attempt.",
        buckets=_WAIT_S,
    ),
    counter("gristmill_segments_accepted_total", "model", help="Segments that were accepted."),
    counter(
        "gristmill_rows_total",
        "model",
        "outcome",
        help="Rows by outcome: completed, failed (as accepted), expired, cancelled, budget (as "
        "the end of their batch found them unanswered).",
    ),
    counter(
        "gristmill_tokens_accepted_total",
        "model",
        "kind",
        help="Tokens of accepted rows, as they are charged: prompt, cached (part of prompt), "
        "completion.",
    ),
    counter(
        "gristmill_cost_total",
        "model",
        "currency",
        help="What accepted rows cost, by GRISTMILL_PRICES; absent without a price.",
    ),
    counter(
        "gristmill_batches_ended_total",
        "status",
        help="Batches that ended; status is completed, failed, expired or cancelled.",
    ),
    counter(
        "gristmill_webhook_deliveries_total",
        "outcome",
        help="Tries to deliver a webhook: delivered, retried (it failed and is tried again), "
        "failed (nobody tries any more).",
    ),
    histogram(
        "gristmill_control_seconds",
        "task",
        help="How long a piece of the control side's work takes; task is ingest, dispatch, "
        "accept, sweep, finalize or webhooks. A count that stands still: nobody does it.",
        buckets=_WORK_S,
    ),
)
