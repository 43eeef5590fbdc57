"""What is counted when batches run, and where the time of their rows went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from mill import Mill
from pipeline import (
    Bench,
    fast_folder,
    make_job,
    make_refusal,
    make_result,
    make_segment,
    make_windows,
)

from gristmill.control.accept import accept
from gristmill.control.base import Control
from gristmill.control.dispatch import dispatch
from gristmill.control.ingest import ingest_windows
from gristmill.control.patient_loop import PatientLoop
from gristmill.control.sweep import sweep
from gristmill.errors import QueueError
from gristmill.ledger import batches
from gristmill.ledger.batch_times import STRETCHES, BatchTimes
from gristmill.ledger.status import BatchStatus
from gristmill.marks import Mark
from gristmill.metrics import Process
from gristmill.outcome import Times
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.telemetry import Tally, Telemetry
from gristmill.telemetry.tally import Distribution
from gristmill.wire import decode_segment, encode_segment


class Watched(Bench):
    """A Bench whose control side tells what it does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tally = Tally(Process.CONTROL)

    @property
    def control(self) -> Control:
        return replace(super().control, telemetry=Telemetry(self.tally))

    @property
    def told(self) -> dict[tuple[str, ...], Any]:
        return {
            (series.metric.name.removeprefix("gristmill_"), *labels): value
            for series in self.tally.look()
            for labels, value in series.values.items()
        }


@pytest.fixture
def watched() -> Iterator[Watched]:
    with fast_folder() as folder:
        made = Watched(folder)
        yield made
        made.ledger.close()


def test_rows_are_counted_by_what_became_of_them(watched: Watched) -> None:
    batch = watched.create()
    windows = make_windows([make_job(0), make_job(1), make_job(2, 3), make_refusal(4)])
    ingest_windows(watched.control, batch, windows, should_pause=lambda: False)
    dispatch(watched.control)
    segment = make_segment(watched.batch, 0, [make_result(make_job(2, 3), 2)])
    watched.store.put(segment_key(bell_of(segment)), encode_segment(segment))
    accept(watched.control, [bell_of(segment)] * 2)
    accept(watched.control, [bell_of(segment)])
    with watched.ledger.write() as conn:
        batches.transition(conn, "acme", batch.id, BatchStatus.CANCELLING, watched.control.now)
    sweep(watched.control)
    told = watched.told

    assert told["rows_ingested_total", "fake"] == 5
    assert told["shards_sent_total", "bulk", "fake"] == 1
    assert told["rows_total", "fake", "completed"] == 2  # identical ones count each
    assert told["rows_total", "fake", "failed"] == 1
    assert told["rows_total", "fake", "cancelled"] == 2
    assert told["segments_accepted_total", "fake"] == 2
    assert told["batches_ended_total", "cancelled"] == 1
    usage = make_result(make_job(2, 3), 2).usage
    assert told["tokens_accepted_total", "fake", "completion"] == 2 * usage.completion_tokens
    tasks = {key[1] for key in told if key[0] == "control_seconds"}
    assert tasks == {"dispatch", "accept", "sweep", "finalize"}


def test_what_accepted_rows_cost_is_counted(watched: Watched) -> None:
    mill = Mill(watched)
    price = {"prompt": "1", "cached": "0.5", "completion": "3"}
    mill.submit("acme", "one", num_jobs=4, prompt_tokens=300, answer_tokens=100, price=price)
    mill.run(10)

    assert watched.told["cost_total", "fake", "USD"] == pytest.approx(4 * 600 / 1e6)
    assert watched.told["batches_ended_total", "completed"] == 1


def test_a_shard_that_is_rung_again_and_a_turn_that_fails_are_counted(watched: Watched) -> None:
    watched.create()
    watched.ingest(make_windows([make_job(0)]))
    dispatch(watched.control)
    watched.clock.advance(watched.settings.resend_after_s + 1)
    sweep(watched.control)

    class Failing(PatientLoop):
        def turn(self) -> None:
            raise QueueError("away")

    loop = Failing(watched.tally)
    loop._retry_s = 0.0
    loop.turn_patiently()

    assert watched.told["retries_total", "shard"] == 1
    assert watched.told["retries_total", "control"] == 1


def accept_row(bench: Bench, *, sent_after: int, opened_after: float, done_after: int) -> None:
    """One row, whose prefill took 2 s and whose decoding took 5."""
    began = bench.batch.in_progress_at
    assert began is not None
    bench.clock.advance(sent_after)
    dispatch(bench.control)
    times = Times(queue_s=0.5, prefill_s=2.0, decode_s=5.0)
    result = replace(make_result(make_job(0), 0), finished_at=began + done_after, times=times)
    mark = Mark(opened_at=began + opened_after)
    segment = replace(make_segment(bench.batch, 0, [result]), mark=mark)
    bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
    accept(bench.control, [bell_of(segment)])


def test_where_the_time_of_a_row_went_is_kept_with_its_batch(watched: Watched) -> None:
    watched.create()
    watched.ingest(make_windows([make_job(0)]))
    accept_row(watched, sent_after=10, opened_after=13.0, done_after=30)
    times = watched.batch.times

    assert [times.mean_s(stretch) for stretch in STRETCHES] == [10, 3, 10, 2, 5]
    assert times.wait.quantile(0.5) == pytest.approx(23, rel=0.05)
    waits: Distribution = watched.told["queue_wait_seconds", "fake"]
    assert waits.total == 3.0


def test_clocks_that_disagree_make_no_stretch_shorter_than_nothing(watched: Watched) -> None:
    watched.create()
    watched.ingest(make_windows([make_job(0)]))
    accept_row(watched, sent_after=10, opened_after=-3.0, done_after=1)
    times = watched.batch.times

    assert [times.mean_s(stretch) for stretch in STRETCHES] == [10, 0, 0.5, 2, 5]


def test_segments_of_an_earlier_version_say_nothing_of_it() -> None:
    with_mark = make_segment
    segment = with_mark(_Batch(), 0)  # type: ignore[arg-type]
    assert decode_segment(encode_segment(segment)).mark.opened_at == 0.0
    assert BatchTimes.from_wire(None).num_rows == 0


class _Batch:
    id, run_id = "batch_1", "run-1"


def test_times_are_the_same_after_they_were_written_and_read() -> None:
    times = BatchTimes(3, 1.5, 2.0, 3.0, 4.0, 5.0)
    times.wait.add(2.0)
    found = BatchTimes.from_wire(times.to_wire())

    assert (found.num_rows, found.ledger_s, found.decode_s) == (3, 1.5, 5.0)
    assert found.wait.counts == times.wait.counts
