"""From windows to Shards: slices, a cursor, and nothing that a crash could leave half done."""

from __future__ import annotations

import json

import pytest
from pipeline import (
    BATCH,
    PIN,
    TENANT,
    Bench,
    Crash,
    CrashingStore,
    MemoryStore,
    fast_folder,
    make_job,
    make_refusal,
    make_windows,
)

from gristmill.control.ingest import cut
from gristmill.errors import BatchInvalid, LineError
from gristmill.ledger import shards
from gristmill.ledger.shards import ShardRow, ShardState
from gristmill.ledger.status import BatchStatus
from gristmill.settings import Settings
from gristmill.stores.keys import batch_key, shard_key
from gristmill.wire import decode_shard

WINDOWS = make_windows(
    [*(make_job(idx) for idx in range(5)), make_refusal(5)],
    [make_job(6), make_job(7, 8)],
)


def all_shards(bench: Bench) -> list[ShardRow]:
    with bench.ledger.read() as conn:
        return [
            shard
            for slice_n in range(bench.batch.num_slices)
            for shard in shards.list_slice(conn, TENANT, BATCH, slice_n)
        ]


def test_each_window_is_a_slice_of_shards(bench: Bench) -> None:
    bench.create()

    assert bench.ingest(WINDOWS)

    found = [(s.n, s.slice, s.num_jobs, s.num_rows, s.state) for s in all_shards(bench)]
    assert found == [
        (0, 0, 3, 3, ShardState.WAITING),
        (1, 0, 2, 2, ShardState.WAITING),
        (2, 0, 1, 1, ShardState.DONE),  # the refused row
        (3, 1, 2, 3, ShardState.WAITING),
    ]
    batch = bench.batch
    assert batch.status is BatchStatus.IN_PROGRESS and batch.in_progress_at
    assert (batch.total, batch.completed, batch.failed) == (9, 0, 1)
    shard = decode_shard(bench.store.get(shard_key(TENANT, BATCH, batch.run_id, 3)))
    assert shard.jobs == WINDOWS[1].jobs
    assert shard.model == PIN


def test_the_store_says_from_the_start_what_the_batch_is(bench: Bench) -> None:
    bench.create(expires_at=77)

    document = json.loads(bench.store.get(batch_key(TENANT, BATCH)))

    assert document["model"]["revision"] == PIN.revision
    assert document["seed"] == "seed"
    assert document["run_id"] == bench.batch.run_id
    assert document["expires_at"] == 77


def test_a_shard_holds_no_more_jobs_and_tokens_than_it_may() -> None:
    settings = Settings(shard_max_jobs=4, shard_max_tokens=1000)
    big = make_job(1, prompt=[1] * 900, max_tokens=5000)  # 900 + at most 256
    middle = make_job(2, prompt=[1] * 300, max_tokens=100)

    def sizes(jobs: list) -> list[int]:
        return [len(some) for some in cut(jobs, settings)]

    assert sizes([make_job(0)] * 9) == [4, 4, 1]
    assert sizes([middle] * 4) == [2, 2]
    assert sizes([big, big, middle, big]) == [1, 1, 1, 1]
    assert sizes([]) == []


def test_a_file_that_is_invalid_fails_the_batch_and_nothing_runs(bench: Bench) -> None:
    bench.create()
    invalid = BatchInvalid([LineError("invalid_json_line", "Not JSON.", 8)], 3)

    assert bench.ingest(WINDOWS, error=invalid)

    batch = bench.batch
    assert batch.status is BatchStatus.FAILED and batch.failed_at
    assert batch.errors == invalid.errors and batch.num_errors == 3
    assert (batch.total, batch.completed, batch.failed) == (0, 0, 0)


def test_ingest_pauses_between_windows_and_goes_on(bench: Bench) -> None:
    bench.create()

    assert not bench.ingest(WINDOWS, should_pause=lambda: True)
    paused = bench.batch
    assert bench.ingest(WINDOWS)

    assert (paused.status, paused.num_slices) == (BatchStatus.VALIDATING, 1)
    assert (paused.total, paused.failed) == (6, 1)
    assert [shard.n for shard in all_shards(bench)] == [0, 1, 2, 3]
    assert bench.batch.total == 9


@pytest.mark.parametrize("after", [False, True])
def test_ingest_goes_on_after_a_death_at_any_store_operation(after: bool) -> None:
    with fast_folder() as folder:
        expected = Bench(folder)
        expected.create()
        expected.ingest(WINDOWS)
        wanted = all_shards(expected)
        expected.ledger.close()
    for crash_at in range(1, 5):
        with fast_folder() as folder:
            bench = Bench(folder)
            whole = bench.store = MemoryStore()
            bench.create()
            bench.store = CrashingStore(whole, crash_at=crash_at, after=after)
            with pytest.raises(Crash):
                bench.ingest(WINDOWS)
            before = dict(whole.objects)

            bench.store = whole
            assert bench.ingest(WINDOWS)

            assert all_shards(bench) == wanted
            # What was written twice was written with the same bytes.
            assert all(whole.objects[key] == body for key, body in before.items())
            bench.ledger.close()


def test_two_ingests_at_once_make_each_slice_once(bench: Bench) -> None:
    bench.create()

    # The other one is faster, each time that this one looks whether it should pause.
    def the_other() -> bool:
        bench.ingest(WINDOWS)
        return False

    bench.ingest(WINDOWS, should_pause=the_other)

    assert [shard.n for shard in all_shards(bench)] == [0, 1, 2, 3]
    assert (bench.batch.total, bench.batch.failed) == (9, 1)
    assert bench.batch.status is BatchStatus.IN_PROGRESS


def test_shards_are_cut_as_the_batch_was_made_not_as_the_settings_are_now(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS, should_pause=lambda: True)
    bench.settings = Settings(shard_max_jobs=1)

    bench.ingest(WINDOWS)

    assert [shard.num_jobs for shard in all_shards(bench)] == [3, 2, 1, 2]
