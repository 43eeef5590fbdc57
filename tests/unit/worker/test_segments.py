"""What an Attempt leaves behind, and what the next one makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline import Bench, MemoryStore, make_job, make_pointer, make_result, make_segment

from gristmill.queues.memory import MemoryQueue
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of, list_segments, read_segment
from gristmill.types import CONTROL_LANE, Bell, ShardPointer
from gristmill.wire import decode_bell, encode_segment
from gristmill_worker.engine.base import Generated
from gristmill_worker.segments import SegmentWriter, read_shard_progress

POINTER = ShardPointer("acme", "batch_1", "run-1", 0, 4, 0)
JOBS = [make_job(idx) for idx in range(4)]


def some(num_tokens: int) -> Generated:
    return Generated(tuple(range(num_tokens)), tuple(range(0, num_tokens * 10, 10)))


def writer(store: MemoryStore, attempt_id: str) -> SegmentWriter:
    return SegmentWriter(store, MemoryQueue(60.0), POINTER, attempt_id)


def listed(store: MemoryStore) -> list[Bell]:
    return list(list_segments(store, "acme", "batch_1", "run-1", 0))


def test_a_segment_is_stored_before_its_bell_rings() -> None:
    store, queue = MemoryStore(), MemoryQueue(60.0)

    def refuse(key: str, body: bytes) -> None:
        raise OSError

    written = SegmentWriter(store, queue, POINTER, "att-a")
    written.write([make_result(JOBS[0], 0)], {})
    whole, store.put = store.put, refuse  # type: ignore[method-assign]
    with pytest.raises(OSError):
        written.write([make_result(JOBS[1], 1)], {})
    store.put = whole  # type: ignore[method-assign]
    written.write([make_result(JOBS[1], 1)], {})

    bells = [decode_bell(lease.body) for lease in queue.receive(CONTROL_LANE, 9, 0)]
    assert bells == listed(store)
    assert [bell.seq for bell in bells] == [0, 1]


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
