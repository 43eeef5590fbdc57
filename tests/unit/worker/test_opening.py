"""A store that takes an open mark and does not say so is taken for no death of a worker."""

from __future__ import annotations

from collections import Counter

from floor import LEASE_S, LONG, Floor

from gristmill.errors import StoreError
from gristmill.marks import CloseReason, Mark
from gristmill.queues.base import BULK_LANE


class MumblingFloor(Floor):
    """The replies to the first so many writes of an open mark are lost."""

    def __init__(self, num_lost: int) -> None:
        super().__init__()
        self.num_lost = num_lost
        put = self.store.put

        def put_and_mumble(key: str, body: bytes) -> None:
            put(key, body)
            if key.endswith("/00000000") and "/segments/" in key and self.num_lost:
                self.num_lost -= 1
                raise StoreError("the reply is lost")

        self.store.put = put_and_mumble  # type: ignore[method-assign]

    def marks(self) -> list[Mark]:
        """The newest one of each Attempt."""
        return list({segment.attempt_id: segment.mark for segment in self.segments()}.values())


def test_the_mark_is_written_again_until_the_store_says_that_it_is_there() -> None:
    floor = MumblingFloor(num_lost=20)
    floor.send(0, LONG[:3])
    worker = floor.worker(patience_s=600.0)

    while floor.num_lost:
        floor.turn(worker)
        floor.clock.advance(1.0)
    floor.run_dry(worker)

    assert [(mark.closed, mark.alone) for mark in floor.marks()] == [(CloseReason.DONE, None)]
    assert len(floor.results()) == 3 and set(floor.decoded.values()) == {1}
    keys = Counter(segment.seq for segment in floor.segments())
    assert set(keys.values()) == {1}


def test_what_is_given_back_before_it_was_said_is_closed() -> None:
    floor = MumblingFloor(num_lost=2)
    floor.send(0, LONG[:3])
    for _ in range(2):
        worker = floor.worker(patience_s=600.0)
        worker.turn()
        worker.drain()
        assert floor.queue.stats(BULK_LANE).leased == 0

    floor.run_dry(floor.worker())

    closed = [mark.closed for mark in floor.marks()]
    assert sorted(closed) == sorted([CloseReason.RELEASED] * 2 + [CloseReason.DONE])
    assert all(mark.alone is None for mark in floor.marks()), "nobody has died"


def test_what_is_lost_before_it_was_said_is_closed() -> None:
    floor = MumblingFloor(num_lost=1)
    floor.send(0, LONG[:3])
    worker = floor.worker(patience_s=600.0)
    worker.turn()

    floor.clock.advance(LEASE_S + 1)
    floor.run_dry(worker)

    closed = [mark.closed for mark in floor.marks()]
    assert sorted(closed) == sorted([CloseReason.FENCED, CloseReason.DONE])
    assert len(floor.results()) == 3
