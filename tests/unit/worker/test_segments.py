"""What an Attempt leaves behind, and what the next one makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st
from pipeline import Bench, MemoryStore, make_job, make_pointer, make_result, make_segment

from gristmill.marks import CloseReason, Mark
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of, list_segments, read_segment
from gristmill.types import Bell, RowResult, ShardPointer
from gristmill.wire import encode_segment
from gristmill_worker.engine.base import Generated
from gristmill_worker.segments import SegmentWriter, read_shard_progress

POINTER = ShardPointer("acme", "batch_1", "run-1", 0, 4, 0)
JOBS = [make_job(idx) for idx in range(4)]


def some(num_tokens: int) -> Generated:
    return Generated(tuple(range(num_tokens)), tuple(range(0, num_tokens * 10, 10)))


class Written:
    """The Segments of one Attempt, each stored as soon as it is made."""

    def __init__(self, store: MemoryStore, attempt_id: str) -> None:
        self._store = store
        self._writer = SegmentWriter(POINTER, attempt_id)

    def write(
        self,
        results: Iterable[RowResult],
        running: Mapping[tuple[int, int], Generated],
        mark: Mark = Mark(),  # noqa: B008
    ) -> None:
        segment = self._writer.next(results, running, mark)
        self._store.put(segment_key(bell_of(segment)), encode_segment(segment))


def writer(store: MemoryStore, attempt_id: str) -> Written:
    return Written(store, attempt_id)


def listed(store: MemoryStore) -> list[Bell]:
    return list(list_segments(store, "acme", "batch_1", "run-1", 0))


def test_checkpoints_are_deltas_and_the_first_begins_at_zero() -> None:
    store = MemoryStore()
    written = writer(store, "att-a")

    written.write([], {(0, 0): some(3), (1, 0): some(0)})
    written.write([], {(0, 0): some(3), (1, 0): some(2)})
    written.write([make_result(JOBS[0], 0)], {(1, 0): some(6)})

    segments = [read_segment(store, bell) for bell in listed(store)]
    deltas = [
        [(c.job_idx, c.start, len(c.token_ids)) for c in s.checkpoints] for s in segments if s
    ]
    assert deltas == [[(0, 0, 3)], [(1, 0, 2)], [(1, 2, 4)]]
    assert [sum(s.ttft.counts.values()) for s in segments if s] == [0, 0, 1]


def test_an_attempt_that_resumed_can_be_read_by_itself() -> None:
    store = MemoryStore()
    writer(store, "att-a").write([], {(2, 0): some(5)})
    resumed = writer(store, "att-b")
    resumed.write([], {(2, 0): some(7)})
    for key in [key for key in store.objects if "att-a" in key]:
        store.delete(key)

    progress = read_shard_progress(store, POINTER)

    assert progress.generated == {(2, 0): some(7)}


def test_the_longest_checkpoint_of_all_attempts_is_taken() -> None:
    store = MemoryStore()
    first, second = writer(store, "att-a"), writer(store, "att-b")
    first.write([], {(0, 0): some(2), (1, 0): some(9), (3, 0): some(4)})
    second.write([], {(0, 0): some(5), (1, 0): some(1)})
    first.write([make_result(JOBS[3], 3)], {(0, 0): some(3), (1, 0): some(9)})

    progress = read_shard_progress(store, POINTER)

    assert progress.finished == {3}
    assert progress.generated == {(0, 0): some(5), (1, 0): some(9)}
    assert list(progress.bells) == listed(store)


@given(st.data())
def test_damage_costs_no_more_than_what_it_hit(data: st.DataObject) -> None:
    store = MemoryStore()
    written = writer(store, "att-a")
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    total = 0
    for num_new in lengths:
        total += num_new
        written.write([], {(0, 0): some(total)})
    bells = listed(store)
    damaged = data.draw(st.integers(0, len(bells) - 1))
    key = segment_key(bells[damaged])
    body = store.objects[key]
    how = data.draw(st.sampled_from(["cut", "flip", "gone", "empty"]))
    position = data.draw(st.integers(0, len(body) - 1))
    if how == "gone":
        del store.objects[key]
    else:
        flipped = bytes([*body[:position], body[position] ^ 0x40, *body[position + 1 :]])
        store.objects[key] = {"cut": body[:position], "flip": flipped, "empty": b""}[how]

    progress = read_shard_progress(store, POINTER)

    # A gap ends the chain: what came before it stands, what follows cannot be put in place.
    kept = sum(lengths[:damaged])
    assert progress.generated == ({(0, 0): some(kept)} if kept else {})
    assert len(progress.bells) == len(bells) - 1


def test_results_behind_a_gap_still_count(bench: Bench) -> None:
    batch = bench.create()
    for seq, job_idx in ((0, 0), (2, 1)):
        segment = make_segment(batch, 0, [make_result(JOBS[job_idx], job_idx)], seq=seq)
        bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))

    progress = read_shard_progress(bench.store, make_pointer(batch, 0, 4))

    assert progress.finished == {0, 1}


def test_what_each_attempt_did_is_told_in_the_order_of_their_marks() -> None:
    store = MemoryStore()
    later, earlier = writer(store, "att-a"), writer(store, "att-b")
    earlier.write([], {}, Mark(5.0, order=1))
    earlier.write([make_result(JOBS[1], 1)], {(0, 0): some(2)}, Mark(6.0, order=1, alone=3))
    later.write([], {}, Mark(7.0, order=2))
    later.write([], {(0, 0): some(4)}, Mark(8.0, order=2, closed=CloseReason.DRAINED))

    first, second = read_shard_progress(store, POINTER).traces

    assert (first.attempt_id, first.mark.alone, first.finished) == ("att-b", 3, {1})
    assert (second.attempt_id, second.mark.closed) == ("att-a", "drained")
    assert (first.lengths, second.lengths) == ({(0, 0): 2}, {(0, 0): 4})
