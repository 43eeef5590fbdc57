"""The clock of a simulation: things that happen at a moment, in the order of their moments."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class EventClock:
    """Seconds from the begin of the trace. What is due at the same moment happens in the order in
    which it was asked for, so that a simulation is the same each time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_asked = 0

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call it then, or now if that has passed."""
        self._num_asked += 1
        heapq.heappush(self._events, (max(when, self.now), self._num_asked, call))

    def run(self, *, until: float) -> bool:
        """Let time go by until nothing more is to happen; False when it did not come to that."""
        while self._events:
            if self._events[0][0] > until:
                return False
            self.now, _, call = heapq.heappop(self._events)
            call()
        return True
