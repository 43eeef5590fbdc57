"""What nothing needs any more is removed on time, and a kill in the middle leaves nothing."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import patch

from mixed_batch import WINDOWS, answer_all
from pipeline import BATCH, TENANT, Bench, Crash, CrashingStore
from submitted_batch import read_all, submit_batch

from gristmill.control import removal
from gristmill.control.removal import WRITE_GRACE_S, remove_unneeded
from gristmill.control.sweep import sweep
from gristmill.ledger import batches, files, life
from gristmill.ledger.files import File
from gristmill.ledger.status import BatchStatus
from gristmill.stores.keys import batch_key, end_key, file_key, merged_key, stop_key


def end_batch(bench: Bench) -> None:
    submit_batch(bench)
    read_all(bench)
    answer_all(bench)
    sweep(bench.control)
    assert bench.batch.status is BatchStatus.COMPLETED


def keys_of_batch(bench: Bench) -> list[str]:
    return list(bench.store.list(f"t/{TENANT}/b/{bench.batch_id}/"))


def kept(bench: Bench) -> list[str]:
    return [batch_key(TENANT, bench.batch_id), end_key(TENANT, bench.batch_id)]


def rows_of_work(bench: Bench) -> int:
    with bench.ledger.read() as conn:
        of_batch = (f"SELECT count(*) FROM {t} WHERE batch_id = ?" for t in ("shards", "segments"))
        return sum(conn.exec_driver_sql(q, (bench.batch_id,)).scalar() or 0 for q in of_batch)


def test_the_work_of_an_ended_batch_is_kept_as_long_as_the_setting_says(bench: Bench) -> None:
    end_batch(bench)
    before = keys_of_batch(bench)
    bench.clock.advance(bench.settings.work_lifetime_s - 1)
    sweep(bench.control)
    assert keys_of_batch(bench) == before and rows_of_work(bench)

    bench.clock.advance(1)
    sweep(bench.control)

    assert keys_of_batch(bench) == kept(bench) and not rows_of_work(bench)
    assert len(bench.lines("output") or []) == 8  # files have a time of their own


def test_work_is_removed_some_at_a_time_and_goes_on_after_any_death(bench: Bench) -> None:
    end_batch(bench)
    bench.clock.advance(bench.settings.work_lifetime_s)
    num_objects = len(keys_of_batch(bench)) - 2
    store = bench.store

    with patch.object(removal, "_MAX_OBJECTS", 3):
        remove_unneeded(bench.control)
        assert len(keys_of_batch(bench)) == num_objects + 2 - 3
        for crash_at in range(1, 9):
            bench.store = CrashingStore(store, crash_at=crash_at, after=crash_at % 2 == 0)
            with suppress(Crash):
                for _ in range(2):
                    remove_unneeded(bench.control)
            bench.store = store
    for _ in range(2):
        remove_unneeded(bench.control)

    assert keys_of_batch(bench) == kept(bench) and not rows_of_work(bench)


def test_the_work_of_a_run_is_left_to_the_run(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer_all(bench)
    sweep(bench.control)
    before = keys_of_batch(bench)

    bench.clock.advance(9 * bench.settings.work_lifetime_s)
    sweep(bench.control)

    assert bench.batch_id == BATCH and keys_of_batch(bench) == before


def test_the_shards_of_a_file_that_fails_late_are_removed(bench: Bench) -> None:
    from gristmill.errors import BatchInvalid, LineError

    submit_batch(bench)
    bench.ingest(WINDOWS[:1], error=BatchInvalid([LineError("empty_batch", "No.")], 1))
    assert bench.batch.status is BatchStatus.FAILED and rows_of_work(bench)

    bench.clock.advance(bench.settings.work_lifetime_s)
    sweep(bench.control)

    assert keys_of_batch(bench) == kept(bench) and not rows_of_work(bench)
    assert bench.batch.errors


def test_of_a_deleted_batch_only_its_files_stay(bench: Bench) -> None:
    end_batch(bench)
    batch = bench.batch
    bench.store.put(stop_key(TENANT, batch.id), b"cancelled")
    now = int(bench.clock())
    with bench.ledger.write() as conn:
        assert life.hide(conn, TENANT, batch.id, now=now, remove_work_at=now + WRITE_GRACE_S)
        assert not life.hide(conn, TENANT, batch.id, now=now, remove_work_at=now)
    sweep(bench.control)
    # A worker that has not heard yet writes once more.
    bench.store.put(merged_key(TENANT, batch.id, batch.run_id, 9, "output"), b"late")

    bench.clock.advance(WRITE_GRACE_S)
    sweep(bench.control)

    assert keys_of_batch(bench) == [] and not rows_of_work(bench)
    with bench.ledger.read() as conn:
        assert batches.get(conn, TENANT, batch.id) is None
        row = life.read_row(conn, TENANT, batch.id)
    assert row is not None and row["metadata"] is None and row["completion_tokens"] > 0
    assert bench.store.size(file_key(TENANT, batch.output_file_id or ""))


def test_an_upload_that_was_killed_is_removed_after_a_day(bench: Bench) -> None:
    now = int(bench.clock())
    file = File("file-1", TENANT, "batch", "in.jsonl", 3, now, now + 9**9)
    done = File("file-2", TENANT, "batch", "in.jsonl", 3, now, now + 9**9)
    for upload in (file, done):
        with bench.ledger.write() as conn:
            files.begin_upload(conn, upload)
        bench.store.put(file_key(TENANT, upload.id), b"abc")
    with bench.ledger.write() as conn:
        assert files.get(conn, TENANT, "file-2", now=now) is None
        assert files.complete_upload(conn, done)

    bench.clock.advance(files.MAX_UPLOAD_S - 1)
    sweep(bench.control)
    assert len(list(bench.store.list("t/"))) == 2
    bench.clock.advance(1)
    sweep(bench.control)

    assert list(bench.store.list("t/")) == [file_key(TENANT, "file-2")]
    with bench.ledger.write() as conn:
        assert not files.complete_upload(conn, file)  # too late
        assert files.get(conn, TENANT, "file-2", now=now) == done


def test_unfinished_writes_are_looked_for_now_and_then_by_one_process(bench: Bench) -> None:
    calls: list[float] = []
    with patch.object(type(bench.store), "remove_unfinished", lambda _, s: calls.append(s) or 0):
        for _ in range(3):
            sweep(bench.control)
        assert calls == [86400]
        bench.clock.advance(6 * 3600)
        for _ in range(3):
            sweep(bench.control)

    assert calls == [86400, 86400]


def test_a_chore_is_claimed_once(bench: Bench) -> None:
    def claim(now: int) -> bool:
        with bench.ledger.write() as conn:
            return life.claim_chore(conn, "dust", now=now, every_s=10)

    assert [claim(now) for now in (5, 5, 14, 15, 15, 24, 25)] == [
        *(True, False, False, True),
        *(False, False, True),
    ]
