"""A Queue in this process's memory: for `gristmill run`, and the model that the others follow."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gristmill.errors import UsageError
from gristmill.queues.base import (
    MAX_DELAY_S,
    LaneStats,
    Lease,
    Room,
    as_lanes,
    check_body,
    check_lane,
)


@dataclass(slots=True)
class _Message:
    id: str | None
    body: bytes
    num_rows: int
    num_tokens: int
    sent_at: float
    #: When it may be received: at once, after a delay, or when its Lease ends.
    visible_at: float
    lease_id: str | None = None
    #: Its Lease ends then at the latest, whatever is renewed.
    held_until: float = math.inf


class MemoryQueue:
    """Messages keep the order in which they were sent, also when they come back."""

    def __init__(
        self,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_hold_s: float = math.inf,
    ) -> None:
        self._lease_s = lease_s
        self._max_hold_s = max_hold_s
        self._clock = clock
        self._lanes: dict[str, dict[int, _Message]] = {}
        self._leased: dict[str, int] = {}
        #: By Lane and message id: the newest message of that id.
        self._newest: dict[tuple[str, str], _Message] = {}
        self._dead: dict[str, int] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    @property
    def lease_s(self) -> float:
        return self._lease_s

    def send(
        self,
        lane: str,
        body: bytes,
        *,
        message_id: str | None = None,
        num_rows: int = 1,
        num_tokens: int = 0,
        tenant_id: str = "",
        makes_lane: bool = True,
    ) -> None:
        check_lane(lane)
        check_body(body)
        with self._changed:
            if not makes_lane and lane not in self._lanes:
                return
            now = self._clock()
            message = _Message(message_id, body, num_rows, num_tokens, now, visible_at=now)
            if message_id is not None:
                newest = self._newest.get((lane, message_id))
                if newest is not None and not self._is_leased(newest):
                    return
                self._newest[lane, message_id] = message
            self._lanes.setdefault(lane, {})[next(self._numbers)] = message
            self._changed.notify_all()

    def receive(
        self,
        lanes: str | Sequence[str],
        max_messages: int,
        wait_s: float,
        *,
        max_rows: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Lease]:
        names = as_lanes(lanes)
        give_up_at = time.monotonic() + wait_s
        with self._changed:
            for lane in names:
                self._lanes.setdefault(lane, {})
            while not (leases := self._take(names, Room(max_messages, max_rows, max_tokens))):
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
                message.visible_at = min(self._clock() + self._lease_s, message.held_until)
            return set(owned)

    def ack(self, *leases: Lease) -> bool:
        with self._changed:
            owned = [self._remove(lease) for lease in leases]
            return all(owned)

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        with self._changed:
            message = self._owned(lease)
            if message is None:
                return False
            del self._leased[lease.id]
            message.lease_id = None
            message.visible_at = self._clock() + min(delay_s, MAX_DELAY_S)
            self._changed.notify_all()
            return True

    def dead_letter(self, lease: Lease, reason: str) -> bool:
        with self._changed:
            if not self._remove(lease):
                return False
            self._dead[lease.lane] = self._dead.get(lease.lane, 0) + 1
            return True

    def stats(self, lane: str) -> LaneStats:
        check_lane(lane)
        with self._changed:
            messages = self._lanes.get(lane, {}).values()
            waiting = [message.sent_at for message in messages if not self._is_leased(message)]
            return LaneStats(
                visible=len(waiting),
                leased=len(messages) - len(waiting),
                dead=self._dead.get(lane, 0),
                oldest_age_s=self._clock() - min(waiting) if waiting else None,
            )

    def remove_lane(self, lane: str) -> None:
        check_lane(lane)
        with self._changed:
            for message in self._lanes.pop(lane, {}).values():
                self._leased.pop(message.lease_id or "", None)
                self._newest.pop((lane, message.id or ""), None)
            self._dead.pop(lane, None)

    def close(self) -> None:
        """Nothing to let go of."""

    def _take(self, lanes: Sequence[str], room: Room) -> list[Lease]:
        now = self._clock()
        leases: list[Lease] = []
        for lane in lanes:
            for number, message in self._lanes.get(lane, {}).items():
                if message.visible_at > now:
                    continue
                if not room.take(message.num_rows, message.num_tokens):
                    return leases
                if message.lease_id is not None:
                    del self._leased[message.lease_id]
                message.visible_at = now + self._lease_s
                # One Lease more, so that there is time to give it back.
                message.held_until = now + self._max_hold_s + self._lease_s
                message.lease_id = f"{number}-{next(self._numbers)}"
                self._leased[message.lease_id] = number
                leases.append(Lease(message.lease_id, lane, message.body, self._max_hold_s))
        return leases

    def _owned(self, lease: Lease) -> _Message | None:
        """The message of a Lease that has not ended and was not given to another."""
        number = self._leased.get(lease.id)
        if number is None:
            return None
        message = self._lanes[lease.lane][number]
        return message if self._is_leased(message) else None

    def _remove(self, lease: Lease) -> bool:
        """Forget the message of a Lease; False when that is lost."""
        message = self._owned(lease)
        if message is None:
            return False
        del self._lanes[lease.lane][self._leased.pop(lease.id)]
        if message.id is not None and self._newest.get((lease.lane, message.id)) is message:
            del self._newest[lease.lane, message.id]
        return True

    def _is_leased(self, message: _Message) -> bool:
        return message.lease_id is not None and message.visible_at > self._clock()


def open_url(url: str, lease_s: float) -> MemoryQueue:
    """Raises UsageError for anything but `memory://`: there is nothing to choose."""
    parts = urlsplit(url)
    if parts.netloc or parts.path.strip("/") or parts.query:
        raise UsageError(f"{url!r} is no queue: memory:// stands alone.")
    return MemoryQueue(lease_s)
