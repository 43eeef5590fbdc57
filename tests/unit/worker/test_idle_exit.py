"""A worker that shall end when nothing is left ends then, and not when it merely sees nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from floor import LONG, Floor
from pipeline import worker_config

from gristmill.errors import QueueError
from gristmill.messages import CONTROL_LANE
from gristmill.queues.base import BULK_LANE, Lease
from gristmill.queues.memory import MemoryQueue
from gristmill_worker.worker import Worker


class SlowQueue(MemoryQueue):
    """Its first look is away, its second one takes until `gate` is set."""

    def __init__(self) -> None:
        super().__init__(60.0)
        self.gate = threading.Event()
        self.is_looking = threading.Event()
        self.num_looks = 0

    def receive(
        self, lanes: str | Sequence[str], max_messages: int, wait_s: float, **limits: Any
    ) -> list[Lease]:
        if lanes == CONTROL_LANE:
            return super().receive(lanes, max_messages, wait_s, **limits)
        self.num_looks += 1
        if self.num_looks == 1:
            raise QueueError("away")
        if self.num_looks == 2:
            self.is_looking.set()
            assert self.gate.wait(60)
        return super().receive(lanes, max_messages, wait_s, **limits)


def test_a_queue_that_is_away_or_slow_has_not_said_that_it_has_nothing() -> None:
    queue = SlowQueue()
    floor = Floor(queue=queue)
    worker = Worker(
        floor.worker()._rows._engine,
        queue,
        floor.store,
        worker_config(idle_wait_s=0.01, exit_when_idle_s=0.0, patience_s=60.0, lanes=(BULK_LANE,)),
    )
    queue.num_looks = 0
    thread = threading.Thread(target=worker.run, args=(threading.Event(),), daemon=True)

    thread.start()
    assert queue.is_looking.wait(60)
    floor.send(0, LONG[:2])
    queue.gate.set()
    thread.join(60)

    assert not thread.is_alive()
    assert queue.stats(BULK_LANE).visible + queue.stats(BULK_LANE).leased == 0
    assert worker.stats.num_generated_tokens > 0


class OwnLaneAway(MemoryQueue):
    """Fails on all but the mixed Lane until `is_back`."""

    is_back = False

    def receive(
        self, lanes: str | Sequence[str], max_messages: int, wait_s: float, **limits: Any
    ) -> list[Lease]:
        if "mine" in lanes and not self.is_back:
            raise QueueError("not just now")
        return super().receive(lanes, max_messages, wait_s, **limits)


def test_while_its_own_lane_cannot_be_asked_an_empty_mixed_one_is_not_the_end() -> None:
    queue = OwnLaneAway(60.0)
    floor = Floor(queue=queue)
    worker = floor.worker(lanes=("mine", BULK_LANE), exit_when_idle_s=5.0)
    floor.send(0, LONG[:1], lane="mine")

    for _ in range(8):
        floor.clock.advance(3)
        floor.turn(worker)
    before = worker._has_been_idle(), len(floor.results())
    queue.is_back = True
    floor.clock.advance(30)
    floor.turn(worker, times=60)
    floor.clock.advance(10)
    floor.turn(worker)

    assert before == (False, 0)
    assert len(floor.results()) == 1 and worker._has_been_idle()


def test_a_lane_of_its_own_that_fails_for_ever_is_waited_for_no_longer_than_an_outage() -> None:
    queue = OwnLaneAway(60.0)
    floor = Floor(queue=queue)
    workers = [
        floor.worker(lanes=("mine", BULK_LANE), exit_when_idle_s=5.0, patience_s=300.0)
        for _ in range(2)
    ]
    began = floor.clock()

    while not all([worker._has_been_idle() for worker in workers]):
        for worker in workers:
            floor.turn(worker)
        floor.clock.advance(3)
    lived_s, troubles = floor.clock() - began, workers[0].health.troubles
    with pytest.raises(QueueError, match=r"mine has failed .* work may wait .*--lanes bulk") as end:
        workers[0].run(threading.Event())
    stop = threading.Event()
    stop.set()
    workers[1].run(stop)  # whoever was told to end has ended well

    assert 300 <= lived_s < 330
    assert "The Lane mine has failed" in troubles[0] and "not just now" in troubles[0]
    assert end.value.retryable  # exit code 75


def test_a_lane_that_is_back_before_patience_ends_begins_anew() -> None:
    queue = OwnLaneAway(60.0)
    floor = Floor(queue=queue)
    worker = floor.worker(lanes=("mine", BULK_LANE), exit_when_idle_s=5.0, patience_s=300.0)

    for is_back in (False, True, False):
        queue.is_back = is_back
        for _ in range(50):
            floor.clock.advance(4)
            floor.send(1, LONG[:1])  # so that it is not idle meanwhile
            floor.turn(worker)

    assert not worker._has_been_idle()
    assert worker.health.troubles and "mine" in worker.health.troubles[0]
