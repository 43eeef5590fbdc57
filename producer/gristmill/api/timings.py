"""How long the rows of a batch took, and where their time went: a part of the batch's object."""

from __future__ import annotations

from pydantic import BaseModel

from gristmill.histogram import Histogram
from gristmill.ledger.batch import Batch


class PercentilesObject(BaseModel):
    """Seconds, each within 5 %."""

    p50: float
    p90: float
    p99: float


class RowSecondsObject(BaseModel):
    """What a row waited for, and was worked on, on average; together its time from the moment in
    which the batch was in progress."""

    #: For the turn of its batch.
    ledger: float
    #: For a worker.
    queue: float
    #: In the worker, before and between its steps.
    worker: float
    prefill: float
    decode: float


class TimingsObject(BaseModel):
    """Of the rows that have their answer so far."""

    #: From a row's entry into an engine to its first token; null where nothing is generated.
    ttft_seconds: PercentilesObject | None
    #: Mean time between the tokens of a row.
    itl_seconds: PercentilesObject | None
    #: From the moment in which the batch was in progress until a row is computed.
    wait_seconds: PercentilesObject | None
    mean_row_seconds: RowSecondsObject | None
    #: From its creation until its file was read.
    validating_seconds: int | None
    #: From the last row to the result files.
    finalizing_seconds: int | None


def timings_object(batch: Batch) -> TimingsObject | None:
    """None before the first row has its answer."""
    if not (batch.completed + batch.failed):
        return None
    times = batch.times
    row_seconds = None
    if times.num_rows:
        row_seconds = RowSecondsObject(
            ledger=round(times.mean_s("ledger_s"), 3),
            queue=round(times.mean_s("queue_s"), 3),
            worker=round(times.mean_s("worker_s"), 3),
            prefill=round(times.mean_s("prefill_s"), 3),
            decode=round(times.mean_s("decode_s"), 3),
        )
    return TimingsObject(
        ttft_seconds=_percentiles(batch.ttft),
        itl_seconds=_percentiles(batch.itl),
        wait_seconds=_percentiles(times.wait),
        mean_row_seconds=row_seconds,
        validating_seconds=_between(batch.created_at, batch.in_progress_at),
        finalizing_seconds=_between(batch.finalizing_at, batch.completed_at),
    )


def _percentiles(found: Histogram) -> PercentilesObject | None:
    values = [found.quantile(q) for q in (0.5, 0.9, 0.99)]
    p50, p90, p99 = (None if value is None else round(value, 6) for value in values)
    if p50 is None or p90 is None or p99 is None:
        return None
    return PercentilesObject(p50=p50, p90=p90, p99=p99)


def _between(began: int | None, ended: int | None) -> int | None:
    return None if began is None or ended is None else max(ended - began, 0)
