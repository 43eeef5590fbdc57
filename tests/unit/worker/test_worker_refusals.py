"""What a Worker does with work that is done, not its own, damaged or failing."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, fake_tokens
from floor import LEASE_S, LONG, Floor, lengths
from pipeline import PIN, TENANT, make_job

from gristmill.queues.base import BULK_LANE
from gristmill.queues.memory import MemoryQueue
from gristmill.stores.keys import segment_key, shard_key
from gristmill.stores.segments import read_segment


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
    stats = floor.queue.stats(BULK_LANE)
    assert (stats.visible, stats.leased, stats.dead) == (0, 0, 1), "the damaged one is put aside"
    assert [bell.shard_n for bell in floor.bells() if bell.damaged] == [0]


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
    assert [segment.mark.closed for segment in floor.segments()] == [None, None], "it died"


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

    floor.turn(worker, times=2)

    assert floor.engine.num_live == 4, "enough to keep it full, and no more begun than can run"
    assert floor.queue.stats(BULK_LANE).leased == 3, "one Shard is read ahead"


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
