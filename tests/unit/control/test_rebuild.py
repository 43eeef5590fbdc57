"""A lost or old Ledger is rebuilt from the Store, at any moment, to the same result files."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from mixed_batch import SHARD_JOBS, WINDOWS, answer, answer_all
from pipeline import PIN, TENANT, Bench, Crash, make_result, make_segment
from submitted_batch import BODY, read_all, submit_batch

from gristmill import crash_points
from gristmill.control.accept import accept
from gristmill.control.rebuild import rebuild
from gristmill.control.sweep import sweep
from gristmill.errors import CorruptDocument, UsageError
from gristmill.ledger import batches, files, life
from gristmill.ledger.status import BatchStatus
from gristmill.stores.keys import file_key, segment_key, shard_key
from gristmill.stores.segments import bell_of
from gristmill.types import RowError
from gristmill.wire import encode_segment


def crash_in_sweep(point: str) -> Callable[[Bench], None]:
    def crash(bench: Bench) -> None:
        def at(name: str, /, **_: object) -> None:
            if name == point:
                raise Crash

        answer_all(bench)
        with patch.object(crash_points, "at", at), pytest.raises(Crash):
            sweep(bench.control)

    return crash


def answer_some(bench: Bench) -> None:
    answer(bench, 3, 0, 2)
    answer(bench, 0, 1)


def answer_twice(bench: Bench) -> None:
    """Two Attempts answer the same Job: the first one counts, whose name comes last."""
    answer(bench, 3, 0, 2)
    failed = RowError("worker_crashed", "It died of it twice.")
    late = make_segment(
        bench.batch, 3, [make_result(SHARD_JOBS[3][0], 0, error=failed)], attempt="att-"
    )
    bench.store.put(segment_key(bell_of(late)), encode_segment(late))
    accept(bench.control, [bell_of(late)])
    crash_in_sweep("frozen-listed")(bench)


def cancel(bench: Bench) -> None:
    answer_some(bench)
    with bench.ledger.write() as conn:
        batches.transition(conn, TENANT, bench.batch_id, BatchStatus.CANCELLING, 5)

    def at(name: str, /, **_: object) -> None:
        if name == "freezing":
            raise Crash

    with patch.object(crash_points, "at", at), pytest.raises(Crash):
        sweep(bench.control)


def read_half(bench: Bench) -> None:
    with bench.ledger.write() as conn:
        batches.pin_model(conn, bench.batch, model=PIN, options={})
    bench.ingest(WINDOWS, should_pause=lambda: True)


def to_its_end(bench: Bench) -> None:
    """Whatever is still to be done, by somebody who knows nothing of what was."""
    if bench.batch.status is BatchStatus.VALIDATING:
        read_all(bench)
    if bench.batch.status is BatchStatus.IN_PROGRESS:
        answer_all(bench)
    sweep(bench.control)


@contextmanager
def copy_of(bench: Bench, ledger: Path | None) -> Iterator[Bench]:
    """Another machine, with the Store of this one, and an older Ledger or none."""
    folder = bench.folder / "copy"
    shutil.copytree(bench.folder / "store", folder / "store")
    if ledger is not None:
        shutil.copy(ledger, folder / "ledger.sqlite")
    copy = Bench(folder, clock=bench.clock, settings=bench.settings, batch_id=bench.batch_id)
    yield copy
    copy.ledger.close()
    shutil.rmtree(folder)


def backup(bench: Bench) -> Path:
    path = bench.folder / "backup.sqlite"
    with (
        closing(sqlite3.connect(bench.folder / "ledger.sqlite")) as source,
        closing(sqlite3.connect(path)) as target,
    ):
        source.backup(target)
    return path


STAGES: dict[str, Callable[[Bench], None]] = {
    "submitted": lambda bench: None,
    "half read": read_half,
    "read": read_all,
    "some answered": lambda bench: (read_all(bench), answer_some(bench))[0],
    "all answered": lambda bench: (read_all(bench), answer_all(bench))[0],
    "frozen": lambda bench: (read_all(bench), crash_in_sweep("frozen")(bench))[0],
    "frozen list": lambda bench: (read_all(bench), crash_in_sweep("frozen-listed")(bench))[0],
    "answered twice": lambda bench: (read_all(bench), answer_twice(bench))[0],
    "merged": lambda bench: (read_all(bench), crash_in_sweep("slice-merged")(bench))[0],
    "published": lambda bench: (read_all(bench), crash_in_sweep("published")(bench))[0],
    "ended": lambda bench: (read_all(bench), answer_all(bench), sweep(bench.control))[0],
    "cancelling": lambda bench: (read_all(bench), cancel(bench))[0],
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_ledger_that_was_lost_or_is_old_leads_to_the_same_files(bench: Bench, stage: str) -> None:
    submit_batch(bench)
    old = backup(bench)
    STAGES[stage](bench)

    found = []
    for ledger in (None, old):
        with copy_of(bench, ledger) as copy:
            rebuild(copy.control)
            again = rebuild(copy.control)
            to_its_end(copy)
            found.append((copy.batch.status, copy.lines("output"), copy.lines("error")))
            counts = copy.batch.total, copy.batch.completed, copy.batch.failed
            assert again.num_files == again.num_lost_files == again.num_lost_batches == 0
            assert copy.batch.metadata == {"a": "b"}
    to_its_end(bench)

    truth = (bench.batch.status, bench.lines("output"), bench.lines("error"))
    assert found == [truth, truth]
    assert counts == (bench.batch.total, bench.batch.completed, bench.batch.failed)
    assert bench.batch.status in (BatchStatus.COMPLETED, BatchStatus.CANCELLED)


def test_a_batch_whose_work_is_removed_is_still_known_to_have_ended(bench: Bench) -> None:
    submit_batch(bench)
    read_all(bench)
    answer_all(bench)
    sweep(bench.control)
    bench.clock.advance(bench.settings.work_lifetime_s + 1)
    sweep(bench.control)
    assert not list(bench.store.list(f"t/{TENANT}/b/{bench.batch_id}/run"))

    with copy_of(bench, None) as copy:
        found = rebuild(copy.control)

        assert (found.num_ended, found.num_open, found.num_files) == (1, 0, 1)
        before, after = bench.batch, copy.batch
        assert after.completed_at == before.completed_at and after.usage == before.usage
        assert copy.lines("output") == bench.lines("output")
        with copy.ledger.read() as conn:
            upload = files.get(conn, TENANT, "file-1", now=int(copy.clock()))
        assert upload is not None and upload.num_bytes == len(BODY)


def test_what_was_deleted_since_is_not_found_again(bench: Bench) -> None:
    submit_batch(bench)
    read_all(bench)
    answer_all(bench)
    sweep(bench.control)
    other = bench.batch_id
    submit_batch(bench, file_id="file-2")
    old = backup(bench)
    with bench.ledger.write() as conn:
        assert life.hide(conn, TENANT, other, now=5, remove_work_at=5)
    sweep(bench.control)
    bench.store.delete(file_key(TENANT, "file-1"))
    assert not list(bench.store.list(f"t/{TENANT}/b/{other}/"))

    with copy_of(bench, old) as copy:
        found = rebuild(copy.control)

        assert (found.num_lost_batches, found.num_lost_files, found.num_open) == (1, 1, 1)
        with copy.ledger.read() as conn:
            assert batches.get(conn, TENANT, other) is None
            assert files.get(conn, TENANT, "file-1", now=0) is None


def test_the_store_of_another_ledger_is_refused_and_nothing_changes(bench: Bench) -> None:
    submit_batch(bench)
    bench.store = type(bench.store)(bench.folder / "another")

    with pytest.raises(UsageError, match="none of them"):
        rebuild(bench.control)

    assert bench.batch.status is BatchStatus.VALIDATING


def test_a_shard_that_the_store_has_lost_is_named(bench: Bench) -> None:
    submit_batch(bench)
    read_all(bench)
    bench.store.delete(shard_key(TENANT, bench.batch_id, bench.batch.run_id, 1))

    with copy_of(bench, None) as copy, pytest.raises(CorruptDocument, match="Shard 1"):
        rebuild(copy.control)
