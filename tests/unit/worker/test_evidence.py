"""What follows from the marks of earlier Attempts, and what a Worker does about it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fake_engine import Clock, FakeEngine, fake_tokens
from floor import LEASE_S, LONG, Floor
from pipeline import make_job

from gristmill.marks import CloseReason, Mark
from gristmill.queues.base import BULK_LANE
from gristmill.queues.memory import MemoryQueue
from gristmill_worker.evidence import (
    MOST_DEATHS,
    Trace,
    Verdict,
    deaths_that_prove,
    find_live,
    judge,
)
from gristmill_worker.worker import Worker


def died(*, alone: int | None = None, finished: int = 0, grown: int | None = None) -> Trace:
    lengths = {} if grown is None else {(alone or 0, 0): grown}
    return Trace("att", Mark(alone=alone), set(range(90, 90 + finished)), lengths)


def closed(*, alone: int | None = None) -> Trace:
    return Trace("att", Mark(alone=alone, closed=CloseReason.DRAINED))


def neighbours_lived(num_rows: int) -> Trace:
    """Other rows, each of which ran alone and came to its end."""
    return Trace(
        "att", Mark(alone=100, closed=CloseReason.DRAINED), set(range(100, 100 + num_rows))
    )


def verdict(*traces: Trace, num_jobs: int = 256) -> Verdict:
    return judge(traces, num_jobs=num_jobs)


def test_two_deaths_without_progress_isolate_a_shard() -> None:
    assert not verdict(died()).is_isolated
    assert verdict(died(), died()).is_isolated
    assert not verdict(died(), died(finished=1)).is_isolated
    assert not verdict(died(), died(grown=3)).is_isolated
    assert verdict(died(), closed(), died()).is_isolated, "closed in order, it proves nothing"


def test_a_checkpoint_that_only_repeats_an_earlier_one_is_no_progress() -> None:
    assert verdict(died(grown=3), died(grown=3), died(grown=3)).is_isolated


def test_isolation_lasts_through_drains_and_ends_with_a_condemnation() -> None:
    begun = [died(), died()]
    alone = [*begun, neighbours_lived(255)]

    assert verdict(*begun, closed(alone=0)).is_isolated
    assert verdict(*begun, died(alone=4)).is_isolated
    assert verdict(*alone, died(alone=4)).suspected == {4: 1}
    condemned = verdict(*alone, *[died(alone=4)] * 3)
    assert (condemned.condemned, condemned.is_isolated) == ({4}, False)
    after = verdict(*alone, *[died(alone=4)] * 3, died())
    assert (after.condemned, after.is_isolated) == ({4}, False)


def test_a_row_that_got_further_is_not_condemned() -> None:
    begun = [died(), died(), neighbours_lived(255), died(alone=4), died(alone=4)]
    further = died(alone=4, grown=7)

    assert not verdict(*begun, further).condemned
    assert not verdict(*begun, *[further] * 3).condemned
    assert verdict(*begun, *[further] * 4).condemned == {4}


def test_the_fewer_neighbours_lived_the_more_deaths_it_takes() -> None:
    needed = [deaths_that_prove(n - 1, 0, n) for n in (1, 2, 8, 64, 256, 10_000)]

    assert needed == sorted(needed, reverse=True)
    assert (needed[0], needed[-1]) == (10, 2)
    assert max(deaths_that_prove(0, n, n + 1) for n in range(100)) == MOST_DEATHS


def test_deaths_of_neighbours_that_lived_later_speak_for_a_row() -> None:
    begun = [died(), died(), neighbours_lived(60)]
    weather = [died(alone=idx) for idx in range(10)] + [
        Trace("att", Mark(alone=0, closed=CloseReason.DRAINED), set(range(10)))
    ]

    assert verdict(*begun, *[died(alone=40)] * 3, num_jobs=64).condemned == {40}
    assert not verdict(*begun, *weather, *[died(alone=40)] * 5, num_jobs=64).condemned


def test_only_a_fresh_mark_that_is_not_closed_shows_life() -> None:
    fresh, old = Trace("a", Mark(1000.0)), Trace("b", Mark(900.0))
    future = Trace("c", Mark(4600.0))
    over = Trace("d", Mark(1000.0, closed=CloseReason.DONE))

    assert find_live([old, future, over, fresh], now=1010.0, lease_s=60.0) is fresh
    assert find_live([old, future, over], now=1010.0, lease_s=60.0) is None


# ---------------------------------------------------------------------------- in a Worker


def live(floor: Floor, *, turns: int = 400) -> bool:
    """A Worker until its Engine kills it, which leaves its Lease to end. Whether it died."""
    worker = floor.worker(max_num_seqs=8)
    try:
        for _ in range(turns):
            floor.turn(worker)
            stats = floor.queue.stats(BULK_LANE)
            if not stats.visible and not stats.leased:
                return False
    except RuntimeError:
        floor.clock.advance(LEASE_S + 1)
        return True
    raise AssertionError("the worker comes to no end")


def test_a_row_that_kills_its_worker_costs_itself_alone() -> None:
    floor = Floor()
    jobs = [make_job(idx) for idx in range(6)]
    jobs[3] = make_job(3, prompt=[FakeEngine.POISON])
    floor.send(0, jobs)

    deaths = 0
    while live(floor):
        deaths += 1

    assert deaths <= 2 + deaths_that_prove(5, 0, 6) == 7
    results = {result.job_idx: result for result in floor.results()}
    assert results.keys() == set(range(6))
    error = results[3].error
    assert error and error.code == "worker_crashed" and error.status_code is None
    for idx in (0, 1, 2, 4, 5):
        assert results[idx].choices[0].token_ids == fake_tokens(jobs[idx])


def test_two_rows_that_kill_are_both_found() -> None:
    floor = Floor()
    jobs = [make_job(idx) for idx in range(8)]
    for idx in (2, 5):
        jobs[idx] = make_job(idx, prompt=[FakeEngine.POISON])
    floor.send(0, jobs)

    while live(floor):
        pass

    failed = {r.job_idx for r in floor.results() if r.error}
    assert failed == {2, 5}
    assert {r.job_idx for r in floor.results()} == set(range(8))


def test_in_isolation_nothing_else_runs_beside_a_row() -> None:
    floor = Floor()
    floor.send(0, [*LONG[:3], make_job(3, prompt=[FakeEngine.POISON])])
    assert live(floor) and live(floor)
    floor.send(1, LONG[3:5])
    worker = floor.worker(max_num_seqs=8)
    most = 0

    for _ in range(200):
        try:
            floor.turn(worker)
        except RuntimeError:
            break
        alone = {segment.mark.alone for segment in floor.segments()} - {None}
        if alone:
            most = max(most, floor.engine.num_live)

    assert most == 1


@pytest.mark.parametrize("num_turns", [1, 2])
def test_killed_machines_condemn_no_row(num_turns: int) -> None:
    floor = Floor()
    jobs = LONG[:3]
    floor.send(0, jobs)
    for _ in range(12):
        floor.turn(floor.worker(max_num_seqs=8, flush_interval_s=0.0), times=num_turns)
        floor.clock.advance(LEASE_S + 1)  # SIGKILL, and the Lease ends

    floor.run_dry(floor.worker(max_num_seqs=8))

    assert [r.error for r in floor.results()] == [None] * len(jobs)


# ---------------------------------------------------------------------------- other Attempts


def test_a_shard_that_another_works_on_is_hidden_for_a_lease() -> None:
    floor = Floor()
    shard = floor.send(0, LONG[:2])
    owner = floor.worker()
    floor.turn(owner, times=2)
    floor.ring(shard)

    floor.turn(floor.worker())

    assert floor.journal == [f"release bulk {LEASE_S:.0f}"]
    floor.turn(owner, times=40)
    assert len(floor.results()) == 2
    assert set(floor.decoded.values()) == {1}


def test_a_dead_workers_rows_run_again_as_soon_as_its_lease_ends_b35() -> None:
    floor = Floor()
    floor.send(0, LONG[:2])
    dead = floor.worker()
    floor.turn(dead, times=5)
    died_at = floor.clock.now
    heir = floor.worker()

    while not floor.engine.live:
        floor.clock.advance(0.5)
        heir.turn()

    assert floor.clock.now - died_at <= LEASE_S + 1


def test_the_sole_worker_of_a_queue_waits_for_nobody() -> None:
    floor = Floor()
    shard = floor.send(0, LONG[:2])
    floor.turn(floor.worker(), times=2)
    floor.ring(shard)

    floor.turn(floor.worker(is_sole=True))

    assert floor.engine.num_live == 2


def test_an_attempt_with_nothing_to_say_still_shows_itself_every_half_lease() -> None:
    floor = Floor()
    floor.send(0, [LONG[0]])
    worker = floor.worker(step_s=1.0, quiet_flush_interval_s=999.0, flush_interval_s=999.0)
    floor.engine.paused = True

    written = []
    for _ in range(100):
        floor.turn(worker)
        written = [segment.mark.written_at for segment in floor.segments()]

    gaps = [b - a for a, b in pairwise(written)]
    assert len(written) >= 4 and max(gaps) <= LEASE_S / 2


@pytest.mark.parametrize("lease_s", [LEASE_S, 20 * LEASE_S])
def test_rows_of_a_batch_that_has_ended_stop_within_one_renewal_b41(lease_s: float) -> None:
    clock = Clock()
    floor = Floor(MemoryQueue(lease_s, clock), clock)
    quick = make_job(0, max_tokens=1)
    floor.send(0, [quick, *LONG[:2]])
    worker: Worker = floor.worker(step_s=5.0, flush_interval_s=999.0)
    floor.turn(worker)

    floor.stop_batch()
    floor.turn(worker, times=4)

    assert not floor.engine.live
    last = floor.segments()[-1]
    assert last.mark.closed is CloseReason.STOPPED
    assert {result.job_idx for result in floor.results()} == {0}, "finished work is kept"
    stats = floor.queue.stats(BULK_LANE)
    assert (stats.visible, stats.leased) == (0, 0)
