"""The simulated queue: Lanes with Shards that wait, and Workers that wait for Shards."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from gristmill.simulator.shards import SimShard


class Listener(Protocol):
    """Who takes Shards off Lanes."""

    lanes: tuple[str, ...]

    def can_run(self, max_row_tokens: int) -> bool:
        """Whether it takes a Shard whose longest row is so long."""

    def wake(self) -> None:
        """There is something on a Lane of its."""


class Lanes:
    """First in, first out on each Lane. A Worker passes over Shards that it cannot run and leaves
    them to others, at no cost: kinder to one Lane for all than any queue is.
    """

    def __init__(self, limits: Iterable[int]) -> None:
        #: What the machines of the fleet can run at most: Shards that fit the same ones are alike.
        self._limits = sorted(set(limits))
        #: By Lane and by the lowest limit that a Shard fits: (number in order, Shard).
        self._waiting: dict[str, dict[int, deque[tuple[int, SimShard]]]] = {}
        self._visible: dict[str, int] = {}
        #: Those that wait, the one that has waited longest in front.
        self._listeners: dict[str, dict[Listener, None]] = {}
        self._num_sent = 0

    def visible(self, lane: str) -> int:
        return self._visible.get(lane, 0)

    def send(self, lane: str, shard: SimShard) -> None:
        of_lane = self._waiting.setdefault(lane, {})
        self._num_sent += 1
        place = bisect_left(self._limits, shard.max_row_tokens)
        assert place < len(self._limits), "what no machine can run is never sent"
        of_lane.setdefault(self._limits[place], deque()).append((self._num_sent, shard))
        self._visible[lane] = self.visible(lane) + 1
        for listener in self._listeners.get(lane, ()):
            if listener.can_run(shard.max_row_tokens):
                self.forget(listener)
                listener.wake()
                return

    def take(self, listener: Listener) -> SimShard | None:
        """The oldest Shard that it can run, of the first of its Lanes that has one."""
        for lane in listener.lanes:
            of_lane = self._waiting.get(lane)
            if not of_lane:
                continue
            able = [limit for limit in of_lane if listener.can_run(limit)]
            if able:
                oldest = min(able, key=lambda limit: of_lane[limit][0][0])
                return self._take_first(lane, oldest)
        return None

    def wait(self, listener: Listener) -> None:
        """Wake it when something comes; it is at the end of those that wait."""
        for lane in listener.lanes:
            of_lane = self._listeners.setdefault(lane, {})
            of_lane.setdefault(listener)

    def forget(self, listener: Listener) -> None:
        for lane in listener.lanes:
            self._listeners.get(lane, {}).pop(listener, None)

    def recall(self, lane: str) -> list[SimShard]:
        """Take all Shards back that wait on a Lane, the oldest first."""
        of_lane = self._waiting.pop(lane, {})
        self._visible.pop(lane, None)
        found = sorted(entry for entries in of_lane.values() for entry in entries)
        return [shard for _, shard in found]

    def names(self) -> Iterable[str]:
        return [lane for lane, visible in self._visible.items() if visible]

    def _take_first(self, lane: str, limit: int) -> SimShard:
        entries = self._waiting[lane][limit]
        shard = entries.popleft()[1]
        if not entries:
            del self._waiting[lane][limit]
        self._visible[lane] -= 1
        return shard
