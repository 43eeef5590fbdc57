"""What one transaction lets count of a batch: rows, tokens, and where their time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gristmill.histogram import Histogram
from gristmill.ledger.batch import Batch
from gristmill.ledger.batch_times import BatchTimes, RowTime
from gristmill.ledger.shards import ShardRow
from gristmill.types import RowResult, Segment, Usage


@dataclass(slots=True)
class Counted:
    """`usage` is what the rows are charged for; `worked` counts what was computed, once."""

    num_segments: int = 0
    num_completed: int = 0
    num_failed: int = 0
    #: Rows that failed, by the code of their error.
    failures: Counter[str] = field(default_factory=Counter)
    usage: Usage = field(default_factory=Usage)
    worked: Usage = field(default_factory=Usage)
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    times: BatchTimes = field(default_factory=BatchTimes)
    #: For each Attempt that was heard of for the first time, since its Shard was sent.
    queue_waits_s: list[float] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return self.num_completed + self.num_failed

    @property
    def num_worked_tokens(self) -> int:
        return self.worked.prompt_tokens + self.worked.completion_tokens

    def take(
        self, batch: Batch, shard: ShardRow, segment: Segment, results: Iterable[RowResult]
    ) -> None:
        """A Segment and those of its results that count. `shard` as it was before."""
        self.num_segments += 1
        if segment.seq == 0 and shard.sent_at is not None and segment.mark.opened_at:
            self.queue_waits_s.append(max(segment.mark.opened_at - shard.sent_at, 0.0))
        is_first = True
        for result in results:
            num_rows = len(result.rows)
            if result.error:
                self.num_failed += num_rows
                self.failures[result.error.code] += num_rows
            else:
                self.num_completed += num_rows
            self.usage += result.usage.times(num_rows)
            self.worked += result.usage
            row = _time_of(batch, shard, segment, result)
            if row is not None:
                self.times.add(row)
            if is_first:  # some count, so the Segment's durations do
                self.ttft.merge(segment.ttft)
                self.itl.merge(segment.itl)
            is_first = False


def _time_of(batch: Batch, shard: ShardRow, segment: Segment, result: RowResult) -> RowTime | None:
    """None for rows that were not computed, and where nobody knows when what began.

    The clocks of Workers and of the control side are not the same, and most moments are known to
    the second: no stretch is shorter than nothing.
    """
    began, sent, opened = batch.in_progress_at, shard.sent_at, segment.mark.opened_at
    if result.error is not None or began is None or sent is None or not opened:
        return None
    prefill_s, decode_s = result.times.prefill_s or 0.0, result.times.decode_s
    ledger_s, queue_s = max(sent - began, 0.0), max(opened - sent, 0.0)
    in_worker_s = max(result.finished_at - opened, 0.0)
    worker_s = max(in_worker_s - prefill_s - decode_s, result.times.queue_s)
    return RowTime(ledger_s, queue_s, worker_s, prefill_s, decode_s)
