"""What keeps a batch moving: the window of Shards on the Lane, and what the sweep repairs."""

from __future__ import annotations

import pytest
from pipeline import (
    BATCH,
    TENANT,
    Bench,
    make_job,
    make_refusal,
    make_result,
    make_segment,
    make_windows,
)

from gristmill.control.accept import take_bells
from gristmill.control.dispatch import dispatch, recall
from gristmill.control.sweep import sweep
from gristmill.errors import QueueError
from gristmill.ledger import batches
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.queues.base import BULK_LANE, Lease
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.types import Bell
from gristmill.wire import decode_pointer, encode_segment

JOBS = [make_job(idx) for idx in range(6)]


def start(bench: Bench, *, num_jobs: int = 6) -> None:
    """As many Shards as Jobs."""
    bench.settings = bench.settings.model_copy(
        update={"shard_max_jobs": 1, "dispatch_window_shards": 2}
    )
    bench.create()
    bench.ingest(make_windows(JOBS[:num_jobs]))


def store_result(bench: Bench, shard_n: int) -> Bell:
    """A worker that answers a Shard, and whose Bell is lost."""
    segment = make_segment(bench.batch, shard_n, [make_result(JOBS[shard_n], 0)])
    bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
    return bell_of(segment)


def take(bench: Bench) -> list[Lease]:
    return bench.queue.receive(BULK_LANE, 99, 0)


def numbers(leases: list[Lease]) -> list[int]:
    return [decode_pointer(lease.body).n for lease in leases]


def test_dispatch_keeps_a_short_window_in_order(bench: Bench) -> None:
    start(bench)

    dispatch(bench.control)
    dispatch(bench.control)
    first = take(bench)
    dispatch(bench.control)
    second = take(bench)

    assert numbers(first) == [0, 1]
    assert numbers(second) == [2, 3]
    pointer = decode_pointer(first[0].body)
    assert (pointer.tenant_id, pointer.batch_id, pointer.num_jobs) == (TENANT, BATCH, 1)
    assert pointer.run_id == bench.batch.run_id


def test_the_batch_that_expires_first_is_served_first(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(update={"dispatch_window_shards": 3})
    for batch_id, expires_at in (("patient", None), ("later", 2_000_000), ("soon", 1_500_000)):
        bench.batch_id = batch_id
        bench.create(expires_at=expires_at)
        bench.ingest(make_windows(JOBS[:3], JOBS[3:]))

    dispatch(bench.control)

    pointers = [decode_pointer(lease.body) for lease in take(bench)]
    assert [(p.batch_id, p.n) for p in pointers] == [("soon", 0), ("soon", 1), ("later", 0)]


def test_nothing_is_dispatched_before_all_is_read_or_after_a_stop(bench: Bench) -> None:
    bench.create()
    bench.ingest(make_windows(JOBS[:3], JOBS[3:]), should_pause=lambda: True)
    assert dispatch(bench.control) == 0

    bench.ingest(make_windows(JOBS[:3], JOBS[3:]))
    with bench.ledger.write() as conn:
        batches.transition(conn, TENANT, BATCH, BatchStatus.CANCELLING, 5)

    assert dispatch(bench.control) == 0


def test_a_silent_shard_is_rung_again_less_and_less_often(bench: Bench) -> None:
    start(bench, num_jobs=1)
    dispatch(bench.control)
    take(bench)  # and that worker is never heard of again
    began = bench.clock.now
    rung_at = []

    for _ in range(100):
        bench.clock.advance(30)
        # The queue may have forgotten its messages; the next delivery is what is counted.
        bench.queue = type(bench.queue)(60.0, bench.clock)
        sweep(bench.control)
        if take(bench):
            rung_at.append(bench.clock.now - began)

    assert rung_at == [120, 360, 840, 1800]


def test_a_lost_bell_is_made_up_for_and_the_shard_not_rung(bench: Bench) -> None:
    start(bench, num_jobs=2)
    dispatch(bench.control)
    leases = take(bench)
    for _ in range(3):
        bench.clock.advance(41)
        assert len(bench.queue.renew(leases)) == 2
    store_result(bench, 0)

    sweep(bench.control)

    assert (bench.batch.completed, bench.batch.last_accepted) == (1, 1)
    # Both are still held; only Shard 1 was rung, past a holder that does nothing.
    assert numbers(take(bench)) == [1]


def test_B39_a_queue_that_refuses_a_write_costs_time_and_no_shard(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise QueueError("The server is full.")

    start(bench, num_jobs=2)
    with monkeypatch.context() as patch:
        patch.setattr(bench.queue, "send", full)
        with pytest.raises(QueueError):
            dispatch(bench.control)

    bench.clock.advance(121)
    sweep(bench.control)

    assert numbers(take(bench)) == [0, 1]


def test_a_shard_that_still_waits_is_not_sent_twice(bench: Bench) -> None:
    start(bench, num_jobs=1)
    dispatch(bench.control)

    for _ in range(20):
        bench.clock.advance(300)
        sweep(bench.control)

    assert numbers(take(bench)) == [0]


def test_checkpoints_alone_keep_a_shard_from_being_rung(bench: Bench) -> None:
    start(bench, num_jobs=1)
    dispatch(bench.control)
    (lease,) = take(bench)
    for seq in range(10):
        bench.clock.advance(50)
        bench.queue.renew([lease])
        alive = make_segment(bench.batch, 0, seq=seq)
        bench.store.put(segment_key(bell_of(alive)), encode_segment(alive))
        sweep(bench.control)

    assert bench.queue.stats(BULK_LANE).visible == 0


def test_a_batch_completes_although_every_bell_was_lost(bench: Bench) -> None:
    start(bench, num_jobs=4)
    for _ in range(40):
        dispatch(bench.control)
        for lease in take(bench):
            store_result(bench, decode_pointer(lease.body).n)
            bench.queue.ack(lease)
        bench.clock.advance(60)
        sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert len(bench.lines("output") or []) == 4


def test_a_new_queue_gets_the_shards_that_were_sent_at_once(bench: Bench) -> None:
    start(bench)
    dispatch(bench.control)
    bench.queue = type(bench.queue)(60.0, bench.clock)

    recall(bench.control, bench.batch)
    dispatch(bench.control)

    assert numbers(take(bench)) == [0, 1]


def test_a_cancelled_batch_ends_with_what_it_has(bench: Bench) -> None:
    start(bench, num_jobs=3)
    store_result(bench, 1)
    with bench.ledger.write() as conn:
        assert batches.transition(conn, TENANT, BATCH, BatchStatus.CANCELLING, 5)

    sweep(bench.control)

    assert bench.batch.status is BatchStatus.CANCELLED
    assert [line["custom_id"] for line in bench.lines("output") or []] == ["row-1"]
    assert len(bench.lines("error") or []) == 2


def test_the_sweep_ends_what_a_dead_finalizer_left(bench: Bench) -> None:
    bench.create()
    bench.ingest(make_windows([make_refusal(0)]))
    with bench.ledger.write() as conn:
        assert batches.freeze(conn, TENANT, BATCH, FreezeReason.COMPLETE, 5)
    assert bench.batch.status is BatchStatus.FINALIZING

    sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert take_bells(bench.control) == 0


def test_a_segment_that_cannot_be_read_is_no_sign_of_life(bench: Bench) -> None:
    """Its worker died while it wrote, and the message is lost."""
    start(bench, num_jobs=1)
    dispatch(bench.control)
    bench.queue.ack(*take(bench))
    bell = bell_of(make_segment(bench.batch, 0, [make_result(JOBS[0], 0)]))
    bench.store.put(segment_key(bell), b"half of it")
    bench.clock.advance(bench.settings.resend_after_s + 1)
    sweep(bench.control)

    assert numbers(take(bench)) == [0]
