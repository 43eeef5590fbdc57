"""Keeps the Leases of a Worker alive, apart from its engine loop, and says when one is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from gristmill import crash_points
from gristmill.errors import QueueError
from gristmill.queues.base import Lease, Queue

log = logging.getLogger(__name__)

#: Renewals that fail for a while are made up for: four tries fit into one Lease.
_RENEWALS_PER_LEASE = 4
#: A step that takes this many times the longest one so far is taken for a hanging one.
_PATIENCE = 20
#: A Worker fences itself this share of a Lease before the queue would give its work to another.
_MARGIN = 1 / 6


@dataclass(slots=True)
class _Held:
    lease: Lease
    #: Monotonic time before the call that began or renewed the Lease.
    since: float
    #: The same for the call that began it.
    began: float
    lost: bool = False


class LeaseKeeper:
    """While entered, a thread of its own renews. All other methods belong to the engine loop."""

    def __init__(
        self,
        queue: Queue,
        *,
        watchdog_s: float,
        on_hang: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._watchdog_s = watchdog_s
        self.on_hang = on_hang
        #: For how many seconds a thread that serves the engine loop has been in one call.
        self.helpers_busy_s: Callable[[], float] = lambda: 0.0
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._last_beat = clock()
        self._longest_s = 0.0
        #: Why the last round failed, for people.
        self.trouble = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def add(self, lease: Lease, *, since: float) -> None:
        """Keep a Lease alive that was received by a call made at `since`."""
        with self._lock:
            self._held[lease.id] = _Held(lease, since, since)

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._held.pop(lease.id, None)

    def is_safe(self, lease: Lease) -> bool:
        """Whether nobody else can have the message yet. Once False it stays False."""
        with self._lock:
            held = self._held.get(lease.id)
            if held is None or held.lost:
                return False
            held.lost = self._clock() - held.since >= self._queue.lease_s * (1 - _MARGIN)
            return not held.lost

    def is_at_its_end(self, lease: Lease) -> bool:
        """Whether the queue lets it be held no longer, however often it is renewed (SQS)."""
        with self._lock:
            held = self._held.get(lease.id)
            return held is not None and self._clock() - held.began >= lease.max_hold_s

    def beat(self) -> None:
        """The engine loop is alive."""
        now = self._clock()
        self._longest_s = max(self._longest_s, now - self._last_beat)
        self._last_beat = now

    @property
    def is_hanging(self) -> bool:
        """Whether there was no step for so long that none will come any more.

        Nor will anything come of steps when a helper hangs in a call: those have limits.
        """
        if self.helpers_busy_s() > self._watchdog_s:
            return True
        silent_s = self._clock() - self._last_beat
        return silent_s > max(self._watchdog_s, _PATIENCE * self._longest_s)

    def renew(self) -> None:
        """One round over all Leases that are not lost; `on_hang` if the engine loop hangs."""
        now = self._clock()
        with self._lock:
            held = [held for held in self._held.values() if not held.lost]
        if not held:
            return
        if self.is_hanging:
            log.error(
                "leases not renewed: no step for %.0f s, a call takes %.0f s",
                now - self._last_beat,
                self.helpers_busy_s(),
            )
            self.on_hang()
            return
        crash_points.at("renewing")
        owned = self._queue.renew([h.lease for h in held])
        crash_points.at("renewed", leases=sorted(owned), since=now)
        with self._lock:
            for h in held:
                if h.lease.id in owned:
                    h.since = now
                else:
                    h.lost = True

    def _run(self) -> None:
        while not self._closing.wait(self._queue.lease_s / _RENEWALS_PER_LEASE):
            try:
                self.renew()
                self.trouble = ""
            except QueueError as error:
                # The next round may succeed; until then the margin counts down.
                log.warning("leases not renewed reason=%s", error)
                self.trouble = str(error)
            except Exception as error:
                log.exception("leases not renewed")
                self.trouble = str(error)
