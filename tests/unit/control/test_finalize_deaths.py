"""No death on the way to the end of a batch, and no second finalizer, changes its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mixed_batch import WINDOWS, answer, answer_all
from pipeline import (
    BATCH,
    TENANT,
    Bench,
    Crash,
    CrashingStore,
    MemoryStore,
    fast_folder,
)
from sqlalchemy import Connection

from gristmill.control.finalize import finalize, freeze
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.status import BatchStatus, FreezeReason


# Rows 0 to 8 in two windows; row 5 is merged with row 2, row 3 is refused.
def run_to_the_end(bench: Bench) -> None:
    if bench.batch.freeze_reason is None:
        freeze(bench.control, bench.batch, FreezeReason.EXPIRED)
    finalize(bench.control, TENANT, BATCH)


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[Any, int]:
    """The result files of a run that nothing disturbs, and its number of store operations."""
    with answered() as bench:
        bench.store = counting = CrashingStore(bench.store, crash_at=-1, after=False)
        run_to_the_end(bench)
        num_operations = counting.num_operations
        return (bench.lines("output"), bench.lines("error")), num_operations


@contextmanager
def answered() -> Iterator[Bench]:
    """A batch that is partly answered and about to end."""
    with fast_folder() as folder:
        bench = Bench(folder)
        bench.store = MemoryStore()
        bench.create()
        bench.ingest(WINDOWS)
        answer(bench, 0, 0, 2)
        answer(bench, 3, 1)
        yield bench
        bench.ledger.close()


@pytest.mark.parametrize("after", [False, True])
def test_finalize_goes_on_after_a_death_at_any_store_operation_b47(
    uninterrupted: tuple[Any, int], after: bool
) -> None:
    expected, num_operations = uninterrupted
    assert num_operations > 15
    for crash_at in range(1, num_operations + 1):
        with answered() as bench:
            whole = bench.store
            bench.store = CrashingStore(whole, crash_at=crash_at, after=after)
            with pytest.raises(Crash):
                run_to_the_end(bench)
            assert (bench.batch.output_file_id, bench.batch.error_file_id) == (None, None)

            bench.store = whole
            run_to_the_end(bench)

            assert (bench.lines("output"), bench.lines("error")) == expected
            assert bench.batch.completed + bench.batch.failed == bench.batch.total == 9


def test_finalize_goes_on_after_a_death_in_any_transaction(
    uninterrupted: tuple[Any, int],
) -> None:
    class Dying(Ledger):
        """Dies at the end of the k-th transaction that writes, which is rolled back."""

        transactions_left = 0

        @contextmanager
        def write(self) -> Iterator[Connection]:
            with super().write() as conn:
                yield conn
                self.transactions_left -= 1
                if not self.transactions_left:
                    raise Crash

    for crash_at in range(1, 5):  # freeze, two slices, publish
        with answered() as bench:
            whole = bench.ledger
            bench.ledger = dying = Dying(whole._engine)
            dying.transactions_left = crash_at
            with pytest.raises(Crash):
                run_to_the_end(bench)

            bench.ledger = whole
            run_to_the_end(bench)

            assert (bench.lines("output"), bench.lines("error")) == uninterrupted[0]


def test_two_finalizers_at_once_do_no_harm(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer_all(bench)
    freeze(bench.control, bench.batch, FreezeReason.COMPLETE)

    # The second runs to its end whenever the first looks whether it should pause.
    def the_other() -> bool:
        finalize(bench.control, TENANT, BATCH)
        return False

    assert finalize(bench.control, TENANT, BATCH, should_pause=the_other)
    assert bench.batch.status is BatchStatus.COMPLETED
    assert bench.batch.merged_slices == 2
    assert len(bench.lines("output") or []) == 8
