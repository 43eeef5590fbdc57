"""Where a Worker listens: the Lane of its pool first, and on without one that cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
from floor import Floor
from pipeline import make_job

from gristmill.errors import QueueError, QueueRefused
from gristmill.fleet import lane_of
from gristmill.queues.base import BULK_LANE, Lease
from gristmill.queues.memory import MemoryQueue
from gristmill.types import CONTROL_LANE


def test_the_lane_of_its_pool_comes_before_the_mixed_one() -> None:
    floor = Floor()
    worker = floor.worker()
    card = worker._announcer.beat().card
    floor.send(0, [make_job(0)])
    floor.send(1, [make_job(1)], lane=lane_of(card))

    floor.turn(worker)
    first = worker._attempts[0].shard.n
    floor.run_dry(worker)
    floor.turn(worker, times=30)

    assert first == 1
    assert len(floor.results()) == 2


class NoNewLanes(MemoryQueue):
    """Has `bulk` and `control`, and refuses to make another, as SQS without the right to."""

    def receive(self, lanes: Any, *args: Any, **options: Any) -> list[Lease]:
        if set(lanes) - {BULK_LANE, CONTROL_LANE} and isinstance(lanes, tuple):
            raise QueueRefused("There is no queue of this name, and none may be made.")
        return super().receive(lanes, *args, **options)


def test_a_worker_that_may_not_make_its_pools_lane_works_from_the_mixed_one_and_says_so() -> None:
    floor = Floor(queue=NoNewLanes(60.0))
    worker = floor.worker()
    floor.send(0, [make_job(0)])

    floor.run_dry(worker)

    assert len(floor.results()) == 1
    assert worker._announcer.beat().card.lanes == (BULK_LANE,)


def test_the_last_lane_is_not_given_up() -> None:
    floor = Floor(queue=NoNewLanes(60.0))
    worker = floor.worker(lanes=("mine",))

    with pytest.raises(QueueRefused):
        worker.turn()


def test_a_worker_listens_where_it_is_told_to() -> None:
    floor = Floor()
    worker = floor.worker(lanes=("mine", "pool", "mine"))

    worker.turn()

    card = worker._announcer.beat().card
    assert card.lanes == ("mine", lane_of(card))


class Failing(MemoryQueue):
    """Fails on the Lanes that are named, as SQS does where one was removed a moment ago."""

    def __init__(self, *names: str) -> None:
        super().__init__(60.0)
        self.names = set(names)

    def receive(self, lanes: Any, *args: Any, **options: Any) -> list[Lease]:
        if self.names & set(lanes):
            raise QueueError("not just now")
        return super().receive(lanes, *args, **options)


def test_a_lane_that_fails_for_a_while_holds_up_no_other_and_is_tried_again() -> None:
    queue = Failing("mine")
    floor = Floor(queue=queue)
    worker = floor.worker(lanes=("mine", BULK_LANE))
    floor.send(0, [make_job(0)])
    floor.send(1, [make_job(1)], lane="mine")

    floor.run_dry(worker)
    before = len(floor.results())
    queue.names.clear()
    floor.clock.advance(30)
    floor.turn(worker, times=30)

    assert (before, len(floor.results())) == (1, 2)
    assert worker._announcer.beat().card.lanes == ("mine", BULK_LANE)


def test_a_queue_that_is_away_is_an_outage_whatever_the_number_of_lanes() -> None:
    worker = Floor(queue=Failing("mine", BULK_LANE)).worker(lanes=("mine", BULK_LANE))

    with pytest.raises(QueueError):
        worker.turn()
