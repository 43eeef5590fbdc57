"""The life of a Lease in a Worker: store, then ring, then ack, and no token decoded twice."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline import (
    PIN,
    TENANT,
    Clock,
    FakeEngine,
    MemoryStore,
    fake_text,
    fake_tokens,
    make_job,
    worker_config,
)

from gristmill.queues.base import BULK_LANE, Lease
from gristmill.queues.memory import MemoryQueue
from gristmill.stores.keys import segment_key, shard_key
from gristmill.stores.segments import list_segments, read_segment
from gristmill.types import CONTROL_LANE, Bell, Endpoint, Job, RowResult, Segment, Shard
from gristmill.wire import decode_bell, encode_pointer, encode_shard
from gristmill_worker.worker import Worker

LEASE_S = 60.0


class JournalQueue(MemoryQueue):
    """Writes down what is sent, acknowledged and released."""

    def __init__(self, journal: list[str], clock: Clock) -> None:
        super().__init__(LEASE_S, clock)
        self.journal = journal

    def send(self, lane: str, body: bytes) -> None:
        self.journal.append(f"send {lane}")
        super().send(lane, body)

    def ack(self, lease: Lease) -> bool:
        self.journal.append(f"ack {lease.lane}")
        return super().ack(lease)

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        self.journal.append(f"release {lease.lane} {delay_s:.0f}")
        return super().release(lease, delay_s)


class Floor:
    """A queue and a store, and Workers that come and go."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.journal: list[str] = []
        self.store = MemoryStore(self.journal)
        self.queue = JournalQueue(self.journal, self.clock)
        #: (prompt, position) of every token that any Worker has decoded.
        self.decoded: Counter[tuple[tuple[int, ...], int]] = Counter()

    def send(self, n: int, jobs: Iterable[Job], *, pin: Any = PIN) -> Shard:
        shard = Shard(TENANT, "batch_1", "run-1", n, Endpoint.CHAT, pin, tuple(jobs))
        self.store.put(shard_key(TENANT, "batch_1", "run-1", n), encode_shard(shard))
        self.ring(shard)
        return shard

    def ring(self, shard: Shard) -> None:
        self.queue.send(BULK_LANE, encode_pointer(shard.pointer))
        self.journal.clear()

    def worker(self, *, step_s: float = 1.0, max_num_seqs: int = 4, **config: Any) -> Worker:
        engine = FakeEngine(
            clock=self.clock,
            step_s=step_s,
            max_num_seqs=max_num_seqs,
            on_decode=lambda prompt, i: self.decoded.update([(prompt, i)]),
        )
        return Worker(
            engine,
            self.queue,
            self.store,
            worker_config(**config),
            monotonic=self.clock,
            wall=self.clock,
        )

    def turn(self, worker: Worker, *, times: int = 1) -> None:
        """Turns of a healthy Worker, whose Leases are renewed meanwhile."""
        for _ in range(times):
            worker.leases.renew()
            worker.turn()

    def run_dry(self, worker: Worker) -> None:
        for _ in range(500):
            self.turn(worker)
            stats = self.queue.stats(BULK_LANE)
            if not stats.visible and not stats.leased:
                return
        raise AssertionError("the worker does not come to an end")

    def segments(self) -> list[Segment]:
        listed = list_segments(self.store, TENANT, "batch_1", "run-1")
        return [segment for bell in listed if (segment := read_segment(self.store, bell))]

    def results(self) -> list[RowResult]:
        return [result for segment in self.segments() for result in segment.results]

    def bells(self) -> list[Bell]:
        leases = self.queue.receive(CONTROL_LANE, 999, 0)
        return [decode_bell(lease.body) for lease in leases]


def lengths(jobs: Iterable[Job]) -> list[int]:
    return [len(fake_tokens(job)) for job in jobs]


LONG = [
    job for idx in range(1000, 1100) if len(fake_tokens(job := make_job(idx, max_tokens=99))) > 15
]


def test_store_then_ring_then_ack() -> None:
    floor = Floor()
    floor.send(0, [make_job(0), make_job(1)])

    floor.run_dry(floor.worker(flush_interval_s=0.0))

    kinds = [entry.split()[0] for entry in floor.journal]
    assert kinds[-3:] == ["put", "send", "ack"]
    assert kinds[:-1] == ["put", "send"] * (len(kinds) // 2)


def test_the_results_are_the_engines() -> None:
    floor = Floor()
    jobs = [make_job(0, 5), make_job(1, max_tokens=3)]
    floor.send(0, jobs)

    floor.run_dry(floor.worker())

    by_job = {result.job_idx: result for result in floor.results()}
    for job_idx, job in enumerate(jobs):
        result = by_job[job_idx]
        assert result.rows == job.rows
        assert result.token_ids == fake_tokens(job)
        assert result.text == fake_text(result.token_ids)
        assert result.ttft_s == pytest.approx(1.0)
        assert result.itl_s == pytest.approx(1.0 if len(result.token_ids) > 1 else 0.0)
        assert int(floor.clock.now) - 30 < result.finished_at <= int(floor.clock.now)


def test_segments_come_in_the_flush_interval_and_later_when_quiet() -> None:
    floor = Floor()
    jobs = LONG[:2]
    floor.send(0, jobs)
    worker = floor.worker(flush_interval_s=5.0, quiet_flush_interval_s=10.0)

    floor.turn(worker, times=9)
    before = len(floor.segments())
    floor.turn(worker)
    quiet = floor.segments()

    assert before == 0
    assert len(quiet) == 1 and not quiet[0].results
    assert [len(c.token_ids) for c in quiet[0].checkpoints] == [10, 10]


def test_an_attempt_whose_turn_has_not_come_shows_that_it_lives() -> None:
    floor = Floor()
    floor.send(0, LONG[:2])
    floor.send(1, [make_job(900, max_tokens=99)])
    worker = floor.worker(max_num_seqs=2, quiet_flush_interval_s=10.0, flush_interval_s=60.0)

    floor.turn(worker, times=12)

    assert {segment.shard_n for segment in floor.segments()} == {0, 1}


@pytest.mark.parametrize("die_at", [0, 3, 7, 12, 18])
def test_a_killed_worker_costs_at_most_what_was_not_flushed_b35(die_at: int) -> None:
    floor = Floor()
    jobs = [*LONG[:3], make_job(0), make_job(1)]
    floor.send(0, jobs)
    floor.turn(
        floor.worker(flush_interval_s=4.0, quiet_flush_interval_s=4.0, max_num_seqs=8),
        times=die_at,
    )
    floor.clock.advance(LEASE_S + 1)

    floor.run_dry(floor.worker(max_num_seqs=8))

    assert {r.job_idx: r.token_ids for r in floor.results()} == dict(
        enumerate(map(fake_tokens, jobs))
    )
    assert len(floor.results()) <= len(jobs) + sum(length <= 4 for length in lengths(jobs))
    decoded_again = sum(count - 1 for count in floor.decoded.values())
    assert decoded_again <= 4 * len(jobs), "four steps were not flushed yet"
    assert set(floor.decoded.values()) <= {1, 2}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=5))
def test_a_drained_worker_costs_nothing_b70(lives: list[tuple[int, bool]]) -> None:
    floor = Floor()
    jobs = [*LONG[:4], *(make_job(idx) for idx in range(6))]
    floor.send(0, jobs[:5])
    floor.send(1, jobs[5:])
    for num_turns, loses_bells in lives:
        worker = floor.worker(flush_interval_s=3.0)
        floor.turn(worker, times=num_turns)
        worker.drain()
        if loses_bells:
            floor.bells()

    floor.run_dry(floor.worker())

    assert set(floor.decoded.values()) == {1}, "no token was paid for twice"
    assert len(floor.results()) == len(jobs), "no row finished twice"
    assert sorted(r.rows[0].idx for r in floor.results()) == sorted(j.rows[0].idx for j in jobs)


def test_a_drained_worker_gives_its_leases_back_at_once_b70() -> None:
    floor = Floor()
    floor.send(0, LONG[:2])
    worker = floor.worker()
    floor.turn(worker, times=3)

    worker.drain()

    assert floor.journal[-3:] == [floor.journal[-3], "send control", "release bulk 0"]
    assert floor.journal[-3].startswith("put ")
    assert floor.queue.stats(BULK_LANE).visible == 1
    assert not any(result.error for result in floor.results())


def test_run_ends_soon_after_the_stop_when_idle_b70() -> None:
    floor = Floor()
    stop = threading.Event()
    thread = threading.Thread(target=floor.worker(idle_wait_s=0.01).run, args=(stop,))
    thread.start()

    stop.set()
    thread.join(timeout=3)

    assert not thread.is_alive()
    assert floor.journal == []


def test_a_fenced_worker_writes_nothing_and_frees_its_engine() -> None:
    floor = Floor()
    shard = floor.send(0, LONG[:2])
    worker = floor.worker(flush_interval_s=5.0, quiet_flush_interval_s=5.0)
    floor.turn(worker, times=2)
    num_segments = len(floor.segments())

    floor.clock.advance(LEASE_S * 0.9)  # no renewal came through
    worker.turn()

    assert len(floor.segments()) == num_segments
    assert worker._engine.num_live == 0
    floor.clock.advance(LEASE_S)
    floor.ring(shard)
    floor.run_dry(floor.worker())
    assert len(floor.results()) == 2


def test_a_lease_lost_during_the_last_step_is_noticed_before_the_write() -> None:
    floor = Floor()
    floor.send(0, [make_job(0, max_tokens=1)])
    worker = floor.worker(step_s=LEASE_S)

    worker.turn()

    assert floor.segments() == []
    assert floor.queue.stats(BULK_LANE).leased == 0


def test_a_finished_shard_is_rung_and_acknowledged_without_work_b34() -> None:
    floor = Floor()
    shard = floor.send(0, [make_job(0), make_job(1)])
    floor.run_dry(floor.worker())
    bells = floor.bells()
    num_decoded = floor.decoded.total()
    floor.ring(shard)

    floor.run_dry(floor.worker())

    assert floor.decoded.total() == num_decoded
    assert floor.journal[-1] == "ack bulk"
    assert floor.bells() == bells, "in case the first ones were lost"


def test_a_shard_that_is_under_way_here_is_not_begun_again_b34() -> None:
    floor = Floor()
    shard = floor.send(0, LONG[:2])
    worker = floor.worker()
    floor.turn(worker, times=2)
    floor.ring(shard)

    floor.turn(worker)

    assert floor.journal[0] == "ack bulk"
    floor.run_dry(worker)
    assert set(floor.decoded.values()) == {1}


def test_a_dead_handle_at_the_ack_is_no_disaster_b34(monkeypatch: pytest.MonkeyPatch) -> None:
    floor = Floor()
    floor.send(0, [make_job(0)])
    floor.send(1, [make_job(1)])
    monkeypatch.setattr(MemoryQueue, "ack", lambda self, lease: False)
    worker = floor.worker()

    floor.turn(worker, times=40)

    assert len(floor.results()) == 2


def test_a_shard_for_another_model_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    floor = Floor()
    floor.send(0, [make_job(0)], pin=replace(PIN, revision="newer"))
    worker = floor.worker()

    with caplog.at_level(logging.WARNING):
        floor.turn(worker, times=3)

    assert floor.journal == [f"release bulk {LEASE_S:.0f}"]
    assert "made for" in caplog.text and "newer" in caplog.text
    assert not floor.decoded


@pytest.mark.parametrize("body", [b"not json", b'{"v":1,"kind":"bell"}', b'{"v":9,"kind":"shard"}'])
def test_a_message_that_cannot_be_read_does_not_stop_the_worker(body: bytes) -> None:
    floor = Floor()
    floor.queue.send(BULK_LANE, body)
    floor.send(0, [make_job(0)])
    worker = floor.worker()

    floor.turn(worker, times=40)

    assert len(floor.results()) == 1


def test_a_shard_that_is_damaged_or_gone_does_not_stop_the_worker() -> None:
    floor = Floor()
    floor.send(0, [make_job(0)])
    floor.send(1, [make_job(1)])
    floor.send(2, [make_job(2)])
    floor.store.objects[shard_key(TENANT, "batch_1", "run-1", 0)] = b"damaged"
    floor.store.delete(shard_key(TENANT, "batch_1", "run-1", 1))
    worker = floor.worker()

    floor.turn(worker, times=40)

    assert [r.rows[0].idx for r in floor.results()] == [2]
    assert floor.queue.stats(BULK_LANE).visible == 1, "the damaged one was given back"


def test_an_error_of_one_row_is_that_rows_b71() -> None:
    floor = Floor()
    jobs = [make_job(idx) for idx in range(5)]
    jobs[2] = make_job(2, prompt=[FakeEngine.BAD])
    floor.send(0, jobs)
    floor.send(1, [make_job(9)])

    floor.run_dry(floor.worker())

    failed = [result for result in floor.results() if result.error]
    assert [result.rows[0].idx for result in failed] == [2]
    assert failed[0].error and failed[0].error.code == "context_length_exceeded"
    assert len(floor.results()) == 6


def test_what_had_finished_is_saved_when_the_engine_breaks() -> None:
    floor = Floor()
    quick = next(j for idx in range(50) if len(fake_tokens(j := make_job(idx))) == 1)
    floor.send(0, [quick, LONG[0], make_job(70, prompt=[FakeEngine.POISON])])
    worker = floor.worker(max_num_seqs=2, flush_interval_s=1000.0)

    with pytest.raises(RuntimeError, match="the engine broke"):
        worker.run(threading.Event())

    assert [result.rows for result in floor.results()] == [quick.rows]
    assert [entry.split()[0] for entry in floor.journal] == ["put", "send"]


def test_a_damaged_segment_counts_for_nothing_in_the_next_attempt() -> None:
    floor = Floor()
    shard = floor.send(0, [make_job(0), make_job(1)])
    floor.run_dry(floor.worker(flush_interval_s=0.0))
    damaged = floor.bells()[0]
    lost = read_segment(floor.store, damaged)
    assert lost is not None
    key = segment_key(damaged)
    floor.store.objects[key] = floor.store.objects[key][:-3]
    floor.ring(shard)

    floor.run_dry(floor.worker())

    assert {r.job_idx for r in floor.results()} == {0, 1}


def test_a_worker_takes_more_work_while_its_engine_has_room() -> None:
    floor = Floor()
    for n in range(8):
        floor.send(n, [LONG[n], LONG[n + 8]])
    worker = floor.worker(max_num_seqs=3)

    floor.turn(worker)

    assert worker._engine.num_live == 6
    assert floor.queue.stats(BULK_LANE).leased == 3


def test_the_stats_say_what_was_decoded_and_what_taken_over() -> None:
    floor = Floor()
    floor.send(0, LONG[:2])
    first = floor.worker()
    floor.turn(first, times=5)
    first.drain()
    second = floor.worker()
    floor.run_dry(second)

    total = sum(lengths(LONG[:2]))
    assert first.stats.num_generated_tokens == 10
    assert second.stats.num_resumed_tokens == 10
    assert second.stats.num_generated_tokens == total - 10
