"""A slice whose results are all there is merged while the rest of its batch runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from mixed_batch import WINDOWS, answer, answer_all
from pipeline import Bench, fast_folder
from submitted_batch import read_all, submit_batch

from gristmill.control import finalize, merge
from gristmill.control.dispatch import dispatch
from gristmill.control.sweep import sweep
from gristmill.errors import CorruptDocument
from gristmill.ledger.status import BatchStatus
from gristmill.stores.keys import lines_key, merged_key, segment_key, shard_key
from gristmill.stores.segments import list_segments


def start(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)


def answer_first_slice(bench: Bench) -> None:
    answer(bench, 0, 0, 1, 2)
    answer(bench, 1, 0)


def test_a_slice_waits_for_those_before_it_and_for_all_of_its_own_results(bench: Bench) -> None:
    start(bench)
    answer(bench, 3, 0, 1, 2)
    answer(bench, 0, 0, 1, 2)

    sweep(bench.control)

    assert bench.batch.merged_slices == 0


def test_a_complete_slice_is_merged_while_the_batch_runs(bench: Bench) -> None:
    start(bench)
    answer_first_slice(bench)
    sweep(bench.control)
    sweep(bench.control)

    ahead = bench.batch
    assert (ahead.status, ahead.merged_slices) == (BatchStatus.IN_PROGRESS, 1)
    with patch.object(finalize, "merge_slice", wraps=finalize.merge_slice) as merge_slice:
        answer(bench, 3, 0, 1, 2)
        sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert [call.args[2] for call in merge_slice.call_args_list] == [1]
    with another_bench() as other:
        answer_all(other)
        sweep(other.control)
        for which in ("output", "error"):
            mine, theirs = bench.lines(which) or [], other.lines(which) or []
            assert [line["custom_id"] for line in mine] == [line["custom_id"] for line in theirs]


@contextmanager
def another_bench() -> Iterator[Bench]:
    """The same batch, of which nothing has been answered yet."""
    with fast_folder() as folder:
        other = Bench(folder)
        start(other)
        yield other
        other.ledger.close()


def answer_most(bench: Bench) -> None:
    answer(bench, 3, 0, 1, 2)
    answer(bench, 0, 0, 1, 2)


def test_near_the_end_the_lines_of_shards_that_are_done_are_only_copied(bench: Bench) -> None:
    start(bench)
    dispatch(bench.control)
    answer_most(bench)
    sweep(bench.control)

    with patch.object(merge, "read_shard", wraps=merge.read_shard) as read_shard:
        answer(bench, 1, 0)
        sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert [call.args[2] for call in read_shard.call_args_list] == [1]
    with another_bench() as other:
        answer_most(other)
        answer(other, 1, 0)
        sweep(other.control)
        for which in ("output", "error"):
            assert bench.lines(which) == other.lines(which)


def test_while_shards_wait_to_be_sent_no_lines_are_kept(bench: Bench) -> None:
    start(bench)
    answer(bench, 3, 0, 1, 2)

    sweep(bench.control)

    assert [key for key in bench.store.list("t/") if "/lines/" in key] == []


@pytest.mark.parametrize("damage", ["lost", "cut", "no JSON"])
def test_kept_lines_that_cannot_be_read_are_made_again(bench: Bench, damage: str) -> None:
    start(bench)
    dispatch(bench.control)
    answer_most(bench)
    sweep(bench.control)
    key = lines_key("acme", bench.batch.id, bench.batch.run_id, 3)
    kept = bench.store.get(key)
    if damage == "lost":
        bench.store.delete(key)
    else:
        bench.store.put(key, kept[:-1] if damage == "cut" else b"#" + kept)

    answer(bench, 1, 0)
    sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert len(bench.lines("output") or []) == 8


def test_what_is_merged_ahead_is_kept_when_the_batch_is_rebuilt(bench: Bench) -> None:
    from gristmill.control.rebuild import rebuild

    submit_batch(bench)
    read_all(bench)
    answer_first_slice(bench)
    sweep(bench.control)
    rebuild(bench.control)
    answer(bench, 3, 0, 1, 2)
    sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert len(bench.lines("output") or []) == 8


def test_a_damaged_segment_is_left_to_the_end_and_keeps_no_other_batch(bench: Bench) -> None:
    start(bench)
    answer_first_slice(bench)
    batch = bench.batch
    bell = next(b for b in list_segments(bench.store, "acme", batch.id, batch.run_id, 0))
    bench.store.put(segment_key(bell), b"damaged")
    submit_batch(bench)
    read_all(bench)
    answer_first_slice(bench)

    sweep(bench.control)

    assert bench.batch.merged_slices == 1


def test_a_lost_shard_stops_no_sweep_while_its_batch_runs(bench: Bench) -> None:
    start(bench)
    answer_first_slice(bench)
    batch = bench.batch
    bench.store.delete(shard_key("acme", batch.id, batch.run_id, 0))
    submit_batch(bench)
    read_all(bench)
    answer_first_slice(bench)

    sweep(bench.control)

    assert bench.batch.merged_slices == 1


def test_a_lost_shard_is_told_of_at_the_end_of_its_batch(bench: Bench) -> None:
    start(bench)
    answer_all(bench)
    batch = bench.batch
    key = shard_key("acme", batch.id, batch.run_id, 0)
    bench.store.delete(key)

    with pytest.raises(CorruptDocument, match=f"The Shard {key} is no longer there"):
        sweep(bench.control)


def test_a_lost_slice_of_merged_lines_is_told_of(bench: Bench) -> None:
    start(bench)
    answer_first_slice(bench)
    sweep(bench.control)
    batch = bench.batch
    key = merged_key("acme", batch.id, batch.run_id, 0, "output")
    bench.store.delete(key)
    answer(bench, 3, 0, 1, 2)

    with pytest.raises(CorruptDocument, match=f"{key} was merged and is no longer there"):
        sweep(bench.control)
