"""What may happen to messages that wait on a queue: anything."""

from __future__ import annotations

from typing import Any

from gristmill.types import CONTROL_LANE


class Messages:
    """Reaches into the MemoryQueue of a small world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._queue = world.queue

    def lose(self) -> None:
        found = self._one()
        if found is not None:
            lane, number = found
            message = self._queue._lanes[lane].pop(number)
            self._queue._leased.pop(message.lease_id, None)
            self._queue._newest.pop((lane, message.id), None)

    def double(self) -> None:
        """Also one that somebody works on, as SQS may."""
        found = self._one()
        if found is not None:
            lane, number = found
            self._queue.send(lane, self._queue._lanes[lane][number].body)

    def delay(self) -> None:
        found = self._one()
        if found is not None:
            lane, number = found
            message = self._queue._lanes[lane][number]
            if message.lease_id is None:
                message.visible_at = self._world.clock() + self._world.rng.choice([10.0, 400.0])

    def shuffle(self) -> None:
        for lane, messages in self._queue._lanes.items():
            found = list(messages.items())
            self._world.rng.shuffle(found)
            self._queue._lanes[lane] = dict(found)

    def wipe(self) -> None:
        """FLUSHALL."""
        for memory in (self._queue._lanes, self._queue._leased, self._queue._newest):
            memory.clear()

    def num_waiting(self) -> int:
        """Messages to workers, under a Lease or not."""
        lanes = [lane for lane in self._queue._lanes if lane != CONTROL_LANE]
        return sum(len(self._queue._lanes[lane]) for lane in lanes)

    def _one(self) -> tuple[str, int] | None:
        found = [(lane, n) for lane, messages in self._queue._lanes.items() for n in messages]
        return self._world.rng.choice(found) if found else None
