"""A Lease that cannot be held for ever (SQS: 12 hours) is given back in order and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fake_engine import Clock, fake_tokens
from floor import Floor
from pipeline import make_job
from queues import sqs

from gristmill.marks import CloseReason
from gristmill.queues.base import BULK_LANE
from gristmill.queues.memory import MemoryQueue
from gristmill.types import Job
from gristmill_worker.worker import Worker

HOUR_S = 3600.0
LEASE_S = HOUR_S
#: Twenty-four tokens each, the most that the FakeEngine gives.
LONGEST = [
    job for idx in range(2000) if len(fake_tokens(job := make_job(idx, max_tokens=99))) == 24
]


class SharedClock(Clock):
    """The clock of the Worker, which takes that of the queue's server along."""

    def __init__(self, others: Callable[[float], None]) -> None:
        super().__init__()
        self._others = others

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._others(seconds)


@contextmanager
def memory_floor() -> Iterator[Floor]:
    clock = Clock()
    yield Floor(MemoryQueue(LEASE_S, clock, max_hold_s=11 * HOUR_S), clock)


@contextmanager
def sqs_floor() -> Iterator[Floor]:
    with sqs(lease_s=LEASE_S) as backend:
        yield Floor(backend.queue, SharedClock(backend.advance))


@pytest.fixture(params=[memory_floor, sqs_floor], ids=["memory", "sqs"])
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    with request.param() as floor:
        yield floor


def run_dry(floor: Floor, worker: Worker) -> None:
    """Until nothing is left, with time that passes also where no step is made."""
    for _ in range(200):
        floor.turn(worker)
        floor.clock.advance(1.0)
        stats = floor.queue.stats(BULK_LANE)
        if not stats.visible and not stats.leased:
            return
    raise AssertionError("the worker does not come to an end")


def answers(floor: Floor) -> dict[int, tuple[int, ...]]:
    return {result.job_idx: tuple(result.choices[0].token_ids) for result in floor.results()}


def test_B34_F24_a_shard_longer_than_twelve_hours_is_given_back_in_order_and_gone_on_with(
    floor: Floor,
) -> None:
    jobs: list[Job] = LONGEST[:2]
    floor.send(0, jobs)
    worker = floor.worker(
        step_s=0.8 * HOUR_S, watchdog_s=1e9, flush_interval_s=1e9, quiet_flush_interval_s=1e9
    )

    run_dry(floor, worker)

    closed = [segment.mark.closed for segment in floor.segments() if segment.mark.closed]
    assert sorted(closed) == [CloseReason.DONE, CloseReason.RELEASED], "24 steps, 19 hours"
    assert answers(floor) == dict(enumerate(map(fake_tokens, jobs)))
    assert set(floor.decoded.values()) == {1}, "no token was paid for twice"


def test_B34_F24_another_worker_goes_on_with_what_could_be_held_no_longer(floor: Floor) -> None:
    jobs: list[Job] = LONGEST[:2]
    floor.send(0, jobs)
    first = floor.worker(step_s=0.8 * HOUR_S, watchdog_s=1e9)
    while not any(segment.mark.closed for segment in floor.segments()):
        first.leases.renew()
        first.turn()
    first.drain()

    run_dry(floor, floor.worker(step_s=0.8 * HOUR_S, watchdog_s=1e9))

    assert answers(floor) == dict(enumerate(map(fake_tokens, jobs)))
    assert set(floor.decoded.values()) == {1}


def test_a_shard_that_waits_for_its_turn_for_so_long_is_given_back_too() -> None:
    with memory_floor() as floor:
        floor.send(0, LONGEST[:3])
        floor.send(1, LONGEST[3:5])
        worker = floor.worker(step_s=0.6 * HOUR_S, watchdog_s=1e9, max_num_seqs=2)
        floor.turn(worker)
        assert floor.queue.stats(BULK_LANE).leased == 2, "one is read ahead"

        run_dry(floor, worker)

    assert len(floor.results()) == 5
    assert set(floor.decoded.values()) == {1}
    assert CloseReason.FENCED not in {segment.mark.closed for segment in floor.segments()}
