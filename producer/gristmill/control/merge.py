"""Turns the Shards and accepted Segments of one slice into lines, in the order of the rows.

A slice is what one window of ingest read, so that its size bounds the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gristmill.control.accept import new_results
from gristmill.control.base import Control
from gristmill.control.lines import LineWriter
from gristmill.control.must_read import read_accepted, read_shard
from gristmill.control.receipt import Origin
from gristmill.control.shard_lines import RowLine, kept_lines
from gristmill.ledger import segments, shards
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import Bitmap, ShardRow
from gristmill.ledger.status import FreezeReason
from gristmill.types import RowError, RowResult

_NEVER_RUN = {
    FreezeReason.EXPIRED: RowError(
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    FreezeReason.CANCELLED: RowError(
        "batch_cancelled", "This request was not executed before the batch was cancelled."
    ),
    FreezeReason.BUDGET: RowError(
        "budget_exceeded", "This request was not executed: the budget of the batch was used up."
    ),
}

#: What stands in the error lines of rows that no worker has seen the end of.
NEVER_RUN_CODES = frozenset(error.code for error in _NEVER_RUN.values())


@dataclass(frozen=True, slots=True)
class MergedSlice:
    """The lines of a slice, each in the order of the rows."""

    output: list[bytes]
    error: list[bytes]


def merge_slice(control: Control, batch: Batch, slice_n: int) -> MergedSlice:
    """Raises CorruptDocument when the Store has lost what it had."""
    with control.ledger.read() as conn:
        of_slice = shards.list_slice(conn, batch.tenant_id, batch.id, slice_n)
    output: dict[int, bytes] = {}
    error: dict[int, bytes] = {}
    for shard in of_slice:
        kept = kept_lines(control.store, batch, shard)
        for idx, failed, line in kept or lines_of_shard(control, batch, shard):
            (error if failed else output)[idx] = line
    num_rows = sum(shard.num_rows for shard in of_slice)
    assert len(output) + len(error) == num_rows and not output.keys() & error.keys(), (
        f"batch {batch.id} slice {slice_n}: {num_rows} rows, {len(output)} + {len(error)} lines"
    )
    return MergedSlice(
        [line for _, line in sorted(output.items())], [line for _, line in sorted(error.items())]
    )


def lines_of_shard(control: Control, batch: Batch, shard: ShardRow) -> Iterator[RowLine]:
    """One for each row of a Shard, in no order. Raises CorruptDocument."""
    assert batch.endpoint is not None, "a batch with Shards has an endpoint"
    lines = LineWriter(batch.id, batch.endpoint, batch.model)
    counted = list(_counted(control, batch, shard))
    answered = {result.job_idx for _, results in counted for result in results}
    # The rows that ingest refused never became Jobs: their results say all.
    all_failed = len(answered) == shard.num_jobs and all(
        result.error for _, results in counted for result in results
    )
    made = None if all_failed else read_shard(control.store, batch, shard.n, for_lines=True)
    jobs, template_hash = (made.jobs, made.template_hash) if made else ((), "")
    for origin, results in counted:
        of_results = replace(origin, template_hash=template_hash)
        for result in results:
            for row in result.rows:
                if result.error:
                    yield RowLine(row.idx, True, lines.failure(row, result.error))
                else:
                    job = jobs[result.job_idx]
                    line = lines.answer(row, result, job, of_results)
                    yield RowLine(row.idx, False, line)
    for job_idx, job in enumerate(jobs):
        if job_idx not in answered:
            for row in job.rows:
                yield RowLine(row.idx, True, lines.failure(row, _never_run(batch)))


def _counted(
    control: Control, batch: Batch, shard: ShardRow
) -> Iterator[tuple[Origin, list[RowResult]]]:
    """The results that count, one of each Job, with where they came from: Segment by Segment."""
    with control.ledger.read() as conn:
        counting = segments.list_with_results(
            conn, batch.tenant_id, batch.id, batch.run_id, shard.n
        )
    accepted = Bitmap.empty(shard.num_jobs)
    for bell in counting:
        segment = read_accepted(control.store, bell)
        origin = Origin(bell.attempt_id, max(segment.mark.order, 1), segment.engine_version)
        yield origin, list(new_results(segment, accepted, shard.num_jobs))


def _never_run(batch: Batch) -> RowError:
    assert batch.freeze_reason in _NEVER_RUN, "a complete batch misses no row"
    return _NEVER_RUN[batch.freeze_reason]
