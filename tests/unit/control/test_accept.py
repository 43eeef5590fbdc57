"""Which results count: once each, whatever the Bells do."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipeline import (
    TENANT,
    Bench,
    MemoryStore,
    fast_folder,
    make_job,
    make_refusal,
    make_result,
    make_segment,
    make_windows,
)
from sqlalchemy import select

from gristmill.control.accept import accept, take_bells
from gristmill.control.finalize import finalize, freeze
from gristmill.control.sweep import sweep
from gristmill.histogram import Histogram
from gristmill.ledger.schema import segments as segments_table
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.types import CONTROL_LANE, Bell, RowError, Segment, Usage
from gristmill.wire import encode_bell, encode_segment

JOBS = [make_job(0), make_job(1, 3), make_job(2), make_job(4), make_job(5)]


def start(bench: Bench) -> None:
    """Shards 0 (Jobs 0..2, four rows), 1 (Job 3), 2 (a refused row), 3 (Job 4)."""
    bench.create()
    bench.ingest(make_windows([*JOBS[:3], JOBS[3], make_refusal(6)], [JOBS[4]]))


def store(bench: Bench, segment: Segment) -> Bell:
    bell = bell_of(segment)
    bench.store.put(segment_key(bell), encode_segment(segment))
    return bell


def acceptance_numbers(bench: Bench) -> list[int]:
    with bench.ledger.read() as conn:
        query = select(segments_table.c.number).order_by(segments_table.c.number)
        return [number for (number,) in conn.execute(query)]


def test_a_row_counts_once_whatever_comes_twice(bench: Bench) -> None:
    start(bench)
    first = store(bench, make_segment(bench.batch, 0, [make_result(JOBS[1], 1)]))
    other = store(
        bench,
        make_segment(
            bench.batch, 0, [make_result(JOBS[1], 1), make_result(JOBS[2], 2)], attempt="att-b"
        ),
    )

    counted = [accept(bench.control, [bell]) for bell in (first, first, other, first, other)]

    assert counted == [2, 0, 1, 0, 0]
    assert (bench.batch.completed, bench.batch.failed, bench.batch.total) == (3, 1, 7)
    assert acceptance_numbers(bench) == [1, 2, 3]  # the first is that of ingest


def test_usage_and_times_are_those_of_the_rows_that_count(bench: Bench) -> None:
    start(bench)
    result = make_result(JOBS[1], 1)
    ttft = Histogram()
    ttft.add(0.5)
    segment = make_segment(bench.batch, 0, [result])
    for attempt in ("att-a", "att-b"):
        bell = store(
            bench,
            Segment(
                TENANT,
                bench.batch.id,
                bench.batch.run_id,
                0,
                attempt,
                0,
                segment.results,
                ttft=ttft,
            ),
        )
        accept(bench.control, [bell])

    assert bench.batch.usage == Usage(4, 2 * result.usage.completion_tokens, 0)
    assert sum(bench.batch.ttft.counts.values()) == 1


def test_failed_rows_are_counted_as_failed_b47(bench: Bench) -> None:
    start(bench)
    error = RowError("context_length_exceeded", "Too long.", None, 400)
    bell = store(bench, make_segment(bench.batch, 0, [make_result(JOBS[1], 1, error=error)]))

    accept(bench.control, [bell])

    assert (bench.batch.completed, bench.batch.failed) == (0, 3)


def test_a_damaged_segment_and_one_under_a_foreign_key_are_skipped(bench: Bench) -> None:
    start(bench)
    segment = make_segment(bench.batch, 0, [make_result(JOBS[0], 0)])
    bell = store(bench, segment)
    body = bench.store.get(segment_key(bell))
    flipped = bytes([*body[:-1], body[-1] ^ 1])
    bench.store.put(segment_key(bell), flipped)
    elsewhere = Bell(TENANT, bench.batch.id, bench.batch.run_id, 1, "att-a", 0)
    bench.store.put(segment_key(elsewhere), body)
    missing = Bell(TENANT, bench.batch.id, bench.batch.run_id, 0, "att-z", 0)

    assert accept(bench.control, [bell, elsewhere, missing]) == 0
    assert bench.batch.last_accepted == 1


def test_a_segment_of_another_run_or_of_no_shard_is_refused(bench: Bench) -> None:
    start(bench)
    result = make_result(JOBS[0], 0)
    strangers = [
        Segment(TENANT, bench.batch.id, "run-old", 0, "att-a", 0, (result,)),
        make_segment(bench.batch, 99, [result]),
        Segment(TENANT, "batch_2", bench.batch.run_id, 0, "att-a", 0, (result,)),
        Segment("rival", bench.batch.id, bench.batch.run_id, 0, "att-a", 0, (result,)),
        make_segment(bench.batch, 0, [make_result(JOBS[0], 7)]),
    ]

    counted = accept(bench.control, [store(bench, segment) for segment in strangers])

    assert counted == 0
    assert bench.batch.completed == 0


def test_nothing_is_accepted_after_the_freeze(bench: Bench) -> None:
    start(bench)
    bench.clock.advance(10)
    assert freeze(bench.control, bench.batch, FreezeReason.BUDGET)
    bell = store(bench, make_segment(bench.batch, 0, [make_result(JOBS[0], 0)]))

    assert accept(bench.control, [bell]) == 0
    assert bench.batch.completed == 0


def test_bells_are_acknowledged_only_after_they_were_accepted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(bench)
    bell = store(bench, make_segment(bench.batch, 0, [make_result(JOBS[0], 0)]))
    bench.queue.send(CONTROL_LANE, b"not a bell")
    bench.queue.send(CONTROL_LANE, encode_bell(bell))

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "get", lambda key: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take_bells(bench.control)
    bench.clock.advance(bench.settings.lease_s + 1)

    assert take_bells(bench.control) == 2
    assert bench.batch.completed == 1
    assert take_bells(bench.control) == 0


# A schedule: which Attempt finishes which Jobs in which Segment, and what becomes of its Bell.
_SEGMENTS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 3]),
        st.sampled_from(["att-a", "att-b"]),
        st.sets(st.integers(0, 2)),
        st.booleans(),
    ),
    max_size=8,
)
_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 7)),
        st.tuples(st.just("ring"), st.integers(0, 7)),
        st.tuples(st.just("sweep"), st.integers(1, 300)),
        st.tuples(st.just("freeze"), st.just(0)),
    ),
    max_size=25,
)
_SHARD_JOBS = {0: JOBS[:3], 1: [JOBS[3]], 3: [JOBS[4]]}


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(_SEGMENTS, _EVENTS)
def test_every_interleaving_gives_each_row_one_line_and_true_counts_b47(
    plans: list[tuple[int, str, set[int], bool]], events: list[tuple[str, int]]
) -> None:
    with fast_folder() as folder:
        bench = Bench(folder)
        bench.store = MemoryStore()
        start(bench)
        stored = _make_segments(bench, plans)
        written: list[Bell] = []
        counts = [(bench.batch.completed, bench.batch.failed)]
        for event, n in events:
            if event == "store" and n < len(stored):
                written.append(store(bench, stored[n]))
            elif event == "ring" and n < len(written):
                accept(bench.control, [written[n], written[n]])
            elif event == "sweep":
                bench.clock.advance(n)
                sweep(bench.control)
            elif event == "freeze":
                freeze(bench.control, bench.batch, FreezeReason.BUDGET)
            counts.append((bench.batch.completed, bench.batch.failed))
            assert sum(counts[-1]) <= bench.batch.total == 7
        accepted = bench.batch.completed
        freeze(bench.control, bench.batch, FreezeReason.BUDGET)
        assert finalize(bench.control, TENANT, bench.batch.id)

        batch = bench.batch
        output, error = bench.lines("output") or [], bench.lines("error") or []
        assert batch.status is BatchStatus.COMPLETED
        assert batch.completed >= accepted
        assert (batch.completed, batch.failed) == (len(output), len(error))
        ids = sorted(line["custom_id"] for line in output + error)
        assert ids == [f"row-{idx}" for idx in range(7)]
        for series in zip(*counts, strict=True):
            assert list(series) == sorted(series)
        numbers = acceptance_numbers(bench)
        assert numbers == list(range(1, len(numbers) + 1))
        assert batch.last_accepted == len(numbers)
        bench.ledger.close()


def _make_segments(bench: Bench, plans: list[tuple[int, str, set[int], bool]]) -> list[Segment]:
    seqs: dict[tuple[int, str], int] = {}
    made = []
    for shard_n, attempt, job_idxs, fails in plans:
        jobs = _SHARD_JOBS[shard_n]
        seq = seqs.get((shard_n, attempt), 0)
        seqs[shard_n, attempt] = seq + 1
        error = RowError("server_error", "No.", None, 500) if fails else None
        results = [make_result(jobs[idx], idx, error=error) for idx in job_idxs if idx < len(jobs)]
        made.append(make_segment(bench.batch, shard_n, results, attempt=attempt, seq=seq))
    return made
