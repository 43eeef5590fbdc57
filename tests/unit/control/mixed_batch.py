"""A batch of merged, refused and plain rows in two slices, and ways to answer it."""

from __future__ import annotations

from pipeline import (
    Bench,
    make_job,
    make_refusal,
    make_result,
    make_segment,
    make_windows,
)

from gristmill.control.accept import accept
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.types import RowError
from gristmill.wire import encode_segment

# Rows 0 to 8 in two windows; row 5 is merged with row 2, row 3 is refused.
WINDOWS = make_windows(
    [make_job(4), make_job(0), make_job(2, 5), make_refusal(3), make_job(1)],
    [make_job(8), make_job(6), make_job(7)],
)
SHARD_JOBS = {0: WINDOWS[0].jobs[:3], 1: WINDOWS[0].jobs[3:], 3: WINDOWS[1].jobs}


def answer(bench: Bench, shard_n: int, *job_idxs: int, error: RowError | None = None) -> None:
    jobs = SHARD_JOBS[shard_n]
    results = [make_result(jobs[idx], idx, error=error) for idx in job_idxs]
    segment = make_segment(bench.batch, shard_n, results, attempt=f"att-{min(job_idxs)}")
    bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
    accept(bench.control, [bell_of(segment)])


def answer_all(bench: Bench) -> None:
    answer(bench, 3, 0, 2)
    answer(bench, 0, 0, 1, 2)
    answer(bench, 1, 0)
    answer(bench, 3, 1)
