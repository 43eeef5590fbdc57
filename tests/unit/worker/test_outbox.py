"""Store, then ring, then acknowledge, through outages of either; and what runs out of memory."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, fake_tokens
from floor import LEASE_S, LONG, Floor
from pipeline import make_job

from gristmill.errors import QueueError, StoreError, StoreRefused
from gristmill.queues.base import BULK_LANE, Lease
from gristmill.queues.memory import MemoryQueue
from gristmill.stores.keys import segment_key
from gristmill.types import Bell


class Outage:
    """Makes the store or the queue of a Floor fail for a while."""

    def __init__(self, floor: Floor) -> None:
        self.store: Exception | None = None
        self.queue: Exception | None = None
        put, send, ack = floor.store.put, floor.queue.send, floor.queue.ack

        def failing_put(key: str, body: bytes) -> None:
            if self.store:
                raise self.store
            put(key, body)

        def failing_send(lane: str, body: bytes, **more: object) -> None:
            if self.queue:
                raise self.queue
            send(lane, body, **more)  # type: ignore[arg-type]

        def failing_ack(*leases: Lease) -> bool:
            if self.queue:
                raise self.queue
            return ack(*leases)

        floor.store.put = failing_put  # type: ignore[method-assign]
        floor.queue.send = failing_send  # type: ignore[method-assign]
        floor.queue.ack = failing_ack  # type: ignore[method-assign]


def keys(bells: list[Bell]) -> list[str]:
    return sorted(segment_key(bell) for bell in bells)


def test_a_store_that_is_away_costs_no_token() -> None:
    floor = Floor()
    floor.send(0, LONG[:2])
    worker = floor.worker(patience_s=600.0, flush_interval_s=2.0, quiet_flush_interval_s=2.0)
    floor.turn(worker, times=3)
    outage = Outage(floor)
    outage.store = StoreError("503 slow down")

    floor.turn(worker, times=60)
    finished_in_the_outage = not floor.engine.live
    troubles = worker.health.troubles
    outage.store = None
    floor.clock.advance(10)
    floor.run_dry(worker)

    assert finished_in_the_outage
    assert troubles == ("503 slow down",) and worker.health.troubles == ()
    assert len(floor.results()) == 2
    assert set(floor.decoded.values()) == {1}


def test_a_bell_and_an_ack_wait_for_a_queue_that_is_away() -> None:
    floor = Floor()
    floor.send(0, [make_job(0, max_tokens=3)])
    outage = Outage(floor)
    outage.queue = QueueError("connection refused")
    worker = floor.worker(patience_s=600.0, flush_interval_s=1.0)

    floor.turn(worker, times=20)
    assert len(floor.results()) == 1, "what is away is not the store"
    outage.queue = None
    floor.clock.advance(10)
    floor.run_dry(worker)

    assert keys(floor.bells()) == [key for key in sorted(floor.store.objects) if "segments" in key]


def test_an_outage_without_end_ends_the_worker() -> None:
    floor = Floor()
    floor.send(0, LONG[:2])
    worker = floor.worker(patience_s=30.0, flush_interval_s=1.0, step_s=5.0)
    floor.turn(worker)
    outage = Outage(floor)
    outage.store = StoreError("503 slow down")

    with pytest.raises(StoreError, match="slow down"):
        floor.turn(worker, times=30)

    assert floor.clock.now >= 1_000_000 + 30


def test_what_will_never_work_is_not_waited_for() -> None:
    floor = Floor()
    floor.send(0, LONG[:2])
    worker = floor.worker(patience_s=600.0, quiet_flush_interval_s=1.0)
    floor.turn(worker)
    Outage(floor).store = StoreRefused("no permission")

    with pytest.raises(StoreRefused, match="no permission"):
        floor.turn(worker, times=5)


def test_a_store_that_is_away_when_a_shard_arrives_leaves_it_to_its_lease() -> None:
    floor = Floor()
    floor.send(0, [make_job(0)])
    outage = Outage(floor)
    outage.store = StoreError("503 slow down")
    worker = floor.worker(patience_s=600.0)
    floor.turn(worker, times=3)

    outage.store = None
    floor.clock.advance(LEASE_S)
    floor.turn(worker, times=60)

    assert len(floor.results()) == 1
    assert floor.queue.stats(BULK_LANE).leased == 0


# ---------------------------------------------------------------------------- out of memory


class SmallDevice(FakeEngine):
    """Has no memory for more than `max_rows` at once, nor for a prompt that begins with HUGE."""

    HUGE = 555
    max_rows = 3

    def step(self):  # type: ignore[no-untyped-def]
        rows = list(self.live.values())[: self.max_num_seqs]
        if len(rows) > self.max_rows or any(r.job.prompt_ids[0] == self.HUGE for r in rows):
            self.clock.advance(self.step_s)
            raise MemoryError("out of memory")
        return super().step()


def test_out_of_memory_means_fewer_rows_at_once_and_costs_none() -> None:
    floor = Floor()
    jobs = [*LONG[:6], make_job(0)]
    floor.send(0, jobs)
    worker = floor.worker(max_num_seqs=8, engine=SmallDevice)

    floor.run_dry(worker)

    found = {r.job_idx: r.choices[0].token_ids for r in floor.results()}
    assert found == dict(enumerate(map(fake_tokens, jobs)))
    assert set(floor.decoded.values()) == {1}


def test_only_the_row_that_cannot_fit_alone_fails() -> None:
    floor = Floor()
    jobs = [*LONG[:4], make_job(9, prompt=[SmallDevice.HUGE])]
    floor.send(0, jobs)

    floor.run_dry(floor.worker(max_num_seqs=8, engine=SmallDevice))

    failed = {r.job_idx: r.error for r in floor.results() if r.error}
    assert failed.keys() == {4} and failed[4] and failed[4].code == "out_of_memory"
    assert len(floor.results()) == 5


def test_an_idle_worker_waits_an_outage_out_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floor = Floor()
    worker = floor.worker(patience_s=30.0)

    def away(*_: object, **__: object) -> list[Lease]:
        raise QueueError("the queue is away")

    def turns_until(seconds: float) -> None:
        end = floor.clock.now + seconds
        while floor.clock.now < end:
            worker.turn()
            floor.clock.advance(1.0)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryQueue, "receive", away)
        turns_until(25.0)
        assert worker.health.troubles == ("the queue is away",)
    turns_until(10.0)
    assert worker.health.troubles == ()

    monkeypatch.setattr(MemoryQueue, "receive", away)
    turns_until(25.0)
    with pytest.raises(QueueError, match="is away"):
        turns_until(15.0)


def test_the_lease_of_a_finished_shard_lasts_until_it_is_acknowledged() -> None:
    floor = Floor()
    shard = floor.send(0, [make_job(0)])
    floor.run_dry(floor.worker())
    floor.ring(shard)
    outage = Outage(floor)
    outage.queue = QueueError("the queue is slow")
    worker = floor.worker(patience_s=9e9)

    for _ in range(3 * int(LEASE_S)):
        floor.turn(worker)
        floor.clock.advance(1.0)
    stats = floor.queue.stats(BULK_LANE)
    assert (stats.visible, stats.leased) == (0, 1), "or it would go round and round"
    outage.queue = None
    floor.clock.advance(20.0)
    floor.turn(worker)

    stats = floor.queue.stats(BULK_LANE)
    assert (stats.visible, stats.leased) == (0, 0)


def test_bells_of_others_are_rung_again_once() -> None:
    floor = Floor()
    shard = floor.send(0, [make_job(0), make_job(1)])
    floor.run_dry(floor.worker(flush_interval_s=0.0))
    bells = floor.bells()
    worker = floor.worker()

    for _ in range(3):
        floor.ring(shard)
        floor.turn(worker)
        floor.clock.advance(1.0)

    assert sorted(map(repr, floor.bells())) == sorted(map(repr, bells))
