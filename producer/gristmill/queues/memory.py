"""A Queue in this process's memory: for `gristmill run`, and the model that the others follow."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gristmill.queues.base import LaneStats, Lease


@dataclass(slots=True)
class _Message:
    lane: str
    body: bytes
    #: When it may be received: at once, after a delay, or when its Lease ends.
    visible_at: float
    lease_id: str | None = None


class MemoryQueue:
    """Messages keep the order in which they were sent, also when they come back."""

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._lanes: dict[str, dict[int, _Message]] = {}
        self._leased: dict[str, int] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    @property
    def lease_s(self) -> float:
        return self._lease_s

    def send(self, lane: str, body: bytes) -> None:
        with self._changed:
            message = _Message(lane, body, visible_at=self._clock())
            self._lanes.setdefault(lane, {})[next(self._numbers)] = message
            self._changed.notify_all()

    def receive(self, lane: str, max_messages: int, wait_s: float) -> list[Lease]:
        give_up_at = time.monotonic() + wait_s
        with self._changed:
            while not (leases := self._take(lane, max_messages)):
                remaining = give_up_at - time.monotonic()
                if remaining <= 0:
                    return []
                # A Lease that ends notifies nobody, so look again now and then.
                self._changed.wait(min(remaining, self._lease_s / 4))
            return leases

    def renew(self, leases: Iterable[Lease]) -> set[str]:
        with self._changed:
            owned = {lease.id: message for lease in leases if (message := self._owned(lease))}
            for message in owned.values():
                message.visible_at = self._clock() + self._lease_s
            return set(owned)

    def ack(self, lease: Lease) -> bool:
        with self._changed:
            if self._owned(lease) is None:
                return False
            del self._lanes[lease.lane][self._leased.pop(lease.id)]
            return True

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        with self._changed:
            message = self._owned(lease)
            if message is None:
                return False
            del self._leased[lease.id]
            message.lease_id = None
            message.visible_at = self._clock() + delay_s
            self._changed.notify_all()
            return True

    def stats(self, lane: str) -> LaneStats:
        with self._changed:
            messages = self._lanes.get(lane, {}).values()
            leased = sum(self._is_leased(message) for message in messages)
            return LaneStats(visible=len(messages) - leased, leased=leased)

    def _take(self, lane: str, max_messages: int) -> list[Lease]:
        now = self._clock()
        leases: list[Lease] = []
        for number, message in self._lanes.get(lane, {}).items():
            if len(leases) == max_messages:
                break
            if message.visible_at > now:
                continue
            if message.lease_id is not None:
                del self._leased[message.lease_id]
            message.visible_at = now + self._lease_s
            message.lease_id = f"{number}-{next(self._numbers)}"
            self._leased[message.lease_id] = number
            leases.append(Lease(message.lease_id, lane, message.body, message.visible_at))
        return leases

    def _owned(self, lease: Lease) -> _Message | None:
        """The message of a Lease that has not ended and was not given to another."""
        number = self._leased.get(lease.id)
        if number is None:
            return None
        message = self._lanes[lease.lane][number]
        return message if self._is_leased(message) else None

    def _is_leased(self, message: _Message) -> bool:
        return message.lease_id is not None and message.visible_at > self._clock()
