"""Cursors of accepted rows hold as long as the order does that they were made in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
from mixed_batch import answer
from pipeline import Bench
from submitted_batch import read_all, submit_batch

from gristmill.control.accepted import Cursor, accepted_lines, is_of_this_order
from gristmill.control.rebuild import rebuild
from gristmill.errors import CorruptDocument
from gristmill.stores.keys import shard_key


def cursors(bench: Bench) -> list[Cursor]:
    return [at for at, _ in accepted_lines(bench.ledger, bench.store, bench.batch, Cursor())]


@contextmanager
def rebuilt(bench: Bench) -> Iterator[Bench]:
    """The same Store, with a Ledger that was made of it."""
    folder = bench.folder / "copy"
    shutil.copytree(bench.folder / "store", folder / "store")
    copy = Bench(folder, clock=bench.clock, settings=bench.settings, batch_id=bench.batch_id)
    rebuild(copy.control)
    yield copy
    copy.ledger.close()


def start(bench: Bench) -> None:
    submit_batch(bench)
    read_all(bench)


def test_a_cursor_of_a_ledger_that_numbers_otherwise_now_is_not_of_this_order(
    bench: Bench,
) -> None:
    start(bench)
    answer(bench, 3, 0, 1, 2)
    answer(bench, 0, 0, 1, 2)
    old = cursors(bench)

    with rebuilt(bench) as copy:  # where they are in the order of their Shards
        new = cursors(copy)

        assert len(new) == len(old)
        assert not any(is_of_this_order(copy.ledger, copy.batch, at) for at in old)
        assert all(is_of_this_order(copy.ledger, copy.batch, at) for at in new)


def test_a_ledger_that_numbers_as_the_lost_one_did_goes_on_from_its_cursors(bench: Bench) -> None:
    start(bench)
    answer(bench, 3, 0, 1, 2)
    answer(bench, 0, 0, 1, 2)

    with rebuilt(bench) as first, rebuilt(first) as second:
        assert cursors(second) == cursors(first) != cursors(bench)


def test_a_lost_shard_is_told_of_where_its_rows_would_stand(bench: Bench) -> None:
    start(bench)
    answer(bench, 3, 0)
    answer(bench, 0, 0)
    key = shard_key("acme", bench.batch_id, bench.batch.run_id, 0)
    bench.store.delete(key)
    lines = accepted_lines(bench.ledger, bench.store, bench.batch, Cursor())

    found = [line for _, line in islice(lines, 2)]

    assert b'"row-3"' in found[0] and b'"row-8"' in found[1]
    with pytest.raises(CorruptDocument, match=f"The Shard {key} is no longer there"):
        next(lines)


@pytest.mark.parametrize("cursor", [Cursor(99, 1, "abc"), Cursor(1, 1), Cursor(0, 1)])
def test_a_cursor_that_nobody_gave_out_is_not_of_this_order(bench: Bench, cursor: Cursor) -> None:
    start(bench)
    answer(bench, 0, 0)

    assert is_of_this_order(bench.ledger, bench.batch, Cursor())
    assert not is_of_this_order(bench.ledger, bench.batch, cursor)
