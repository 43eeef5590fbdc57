"""The life of a Lease in a Worker: store, then ring, then ack, and no token decoded twice."""

from __future__ import annotations

import threading

import pytest
from fake_engine import fake_text, fake_tokens
from floor import LEASE_S, LONG, Floor, lengths
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline import make_job

from gristmill.marks import CloseReason
from gristmill.queues.base import BULK_LANE


def test_store_then_ring_then_ack() -> None:
    floor = Floor()
    floor.send(0, [make_job(0), make_job(1)])

    floor.run_dry(floor.worker(flush_interval_s=0.0))

    kinds = [entry.split()[0] for entry in floor.journal]
    assert kinds[-3:] == ["put", "send", "ack"]
    assert kinds.count("ack") == 1 and kinds.count("put") == kinds.count("send")
    assert all(kinds[:n].count("put") >= kinds[:n].count("send") for n in range(len(kinds)))


def test_the_results_are_the_engines() -> None:
    floor = Floor()
    jobs = [make_job(0, 5), make_job(1, max_tokens=3)]
    floor.send(0, jobs)

    floor.run_dry(floor.worker())

    by_job = {result.job_idx: result for result in floor.results()}
    for job_idx, job in enumerate(jobs):
        result = by_job[job_idx]
        assert result.rows == job.rows
        [choice] = result.choices
        assert choice.token_ids == fake_tokens(job)
        assert choice.text == fake_text(choice.token_ids)
        assert result.ttft_s == pytest.approx(1.0)
        assert result.itl_s == pytest.approx(1.0 if len(choice.token_ids) > 1 else 0.0)
        assert int(floor.clock.now) - 30 < result.finished_at <= int(floor.clock.now)


def test_segments_come_in_the_flush_interval_and_later_when_quiet() -> None:
    floor = Floor()
    jobs = LONG[:2]
    floor.send(0, jobs)
    worker = floor.worker(flush_interval_s=5.0, quiet_flush_interval_s=10.0)

    floor.turn(worker)
    opened, first = floor.segments()
    floor.turn(worker, times=9)
    before = len(floor.segments())
    floor.turn(worker)
    quiet = floor.segments()

    assert not opened.results and not opened.checkpoints
    assert [len(c.token_ids) for c in first.checkpoints] == [1, 1], "soon, so that a kill shows"
    assert before == 2
    assert len(quiet) == 3 and not quiet[2].results
    assert [len(c.token_ids) for c in quiet[2].checkpoints] == [10, 10]


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

    assert {r.job_idx: r.choices[0].token_ids for r in floor.results()} == dict(
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


def test_B35_twenty_stops_at_any_moment_of_fetching_lose_nothing() -> None:
    floor = Floor()
    jobs = [make_job(idx) for idx in range(50)]
    for n, job in enumerate(jobs):
        floor.send(n, [job])

    for life in range(20):
        stop = threading.Event()
        # Told to stop when it has fetched so many Shards: some have run, one or two wait.
        worker = floor.worker(max_num_seqs=2, idle_wait_s=0.001)
        left = life % 4
        fetch = floor.store.get

        def get_and_stop(key: str, fetch=fetch, stop=stop) -> bytes:  # type: ignore[no-untyped-def]
            nonlocal left
            if "/shards/" in key:
                left -= 1
                if left < 0:
                    stop.set()
            return fetch(key)

        floor.store.get = get_and_stop  # type: ignore[method-assign]
        worker.run(stop)
        floor.store.get = fetch  # type: ignore[method-assign]
    floor.run_dry(floor.worker(max_num_seqs=8))

    assert {r.rows[0].idx for r in floor.results()} == set(range(50))
    assert len(floor.results()) == 50
    assert set(floor.decoded.values()) == {1}
    assert not any(result.error for result in floor.results())


def test_run_ends_soon_after_the_stop_when_idle_b70() -> None:
    floor = Floor()
    stop = threading.Event()
    thread = threading.Thread(target=floor.worker(idle_wait_s=0.01).run, args=(stop,))
    thread.start()

    stop.set()
    thread.join(timeout=60)

    assert not thread.is_alive()
    assert floor.journal == []


def test_a_fenced_worker_says_so_and_frees_its_engine() -> None:
    floor = Floor()
    shard = floor.send(0, LONG[:2])
    worker = floor.worker(flush_interval_s=5.0, quiet_flush_interval_s=5.0)
    floor.turn(worker, times=2)

    floor.clock.advance(LEASE_S * 0.9)  # no renewal came through
    worker.turn()

    last = floor.segments()[-1]
    assert last.mark.closed is CloseReason.FENCED
    assert not floor.engine.live
    floor.clock.advance(LEASE_S)
    floor.ring(shard)
    floor.run_dry(floor.worker())
    assert len(floor.results()) == 2
    assert set(floor.decoded.values()) == {1}, "what it had was not lost"


def test_a_lease_lost_during_the_last_step_is_noticed_before_the_ack() -> None:
    floor = Floor()
    floor.send(0, [make_job(0, max_tokens=1)])
    worker = floor.worker(step_s=LEASE_S)

    worker.turn()

    assert [segment.mark.closed for segment in floor.segments()] == [None, CloseReason.FENCED]
    assert not [entry for entry in floor.journal if entry.startswith(("ack", "release"))]
