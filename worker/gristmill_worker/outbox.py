"""Stores Segments, rings and acknowledges apart from the engine loop: always in this order.

A store or queue that is away holds things up here and nowhere else: rows go on decoding, each
Attempt with at most one Segment on its way, until the outage has lasted longer than `patience_s`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from gristmill import crash_points
from gristmill.errors import GristmillError
from gristmill.queues.base import Queue
from gristmill.stores.base import Store
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.types import CONTROL_LANE, Bell, Checkpoint, Segment
from gristmill.wire import encode_bell, encode_segment
from gristmill_worker.attempt import Attempt

log = logging.getLogger(__name__)

_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0
_MAX_RUNG_AGAIN = 10_000


@dataclass(frozen=True, slots=True)
class _Errand:
    """A call on the store or the queue, to be repeated until it succeeds."""

    what: str
    call: Callable[[], object]


class _Line:
    """Errands that are done one after the other; one that fails for a while holds up the rest."""

    def __init__(
        self, clock: Callable[[], float], patience_s: float, on_retry: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._on_retry = on_retry
        self._patience_s = patience_s
        self._errands: deque[_Errand] = deque()
        self._failing_since: float | None = None
        self._retry_at = 0.0
        self._retry_s = _FIRST_RETRY_S
        self.trouble = ""
        #: When the call began that is under way.
        self.call_began: float | None = None

    def __len__(self) -> int:
        return len(self._errands)

    def add(self, errand: _Errand) -> None:
        self._errands.append(errand)

    def wait_s(self) -> float | None:
        """Seconds until there is something to do; None when there is nothing, or never will be."""
        if not self._errands or self._retry_at == math.inf:
            return None
        return max(self._retry_at - self._clock(), 0.0)

    def pump(self) -> bool:
        """Do what is due; whether anything was done. Raises what cannot be waited out."""
        done = False
        while self._errands and self._retry_at <= self._clock():
            errand = self._errands[0]
            self.call_began = self._clock()
            try:
                errand.call()
            except Exception as error:
                if not _is_outage(error) or self._has_lost_patience():
                    self._retry_at = math.inf
                    raise
                self._fail(errand, error)
                return done
            finally:
                self.call_began = None
            self._errands.popleft()
            self._recover(errand)
            done = True
        return done

    def _has_lost_patience(self) -> bool:
        if self._failing_since is None:
            self._failing_since = self._clock()
        return self._clock() - self._failing_since >= self._patience_s

    def _fail(self, errand: _Errand, error: Exception) -> None:
        log.warning("outage what=%s retry_s=%.1f reason=%s", errand.what, self._retry_s, error)
        self._on_retry()
        self.trouble = str(error)
        self._retry_at = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)

    def _recover(self, errand: _Errand) -> None:
        if self.trouble:
            log.info("outage over what=%s", errand.what)
        self.trouble, self._failing_since = "", None
        self._retry_at, self._retry_s = 0.0, _FIRST_RETRY_S


def _is_outage(error: Exception) -> bool:
    return isinstance(error, GristmillError) and error.retryable


def _end_of(checkpoint: Checkpoint) -> tuple[int, int, int]:
    end = checkpoint.start + len(checkpoint.token_ids)
    return checkpoint.job_idx, checkpoint.choice_idx, end


class Outbox:
    """While entered, a thread of its own works; else whoever calls `pump` does."""

    def __init__(
        self,
        store: Store,
        queue: Queue,
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._queue = queue
        #: Called when a Segment lies in the Store.
        self.on_stored: Callable[[], None] = lambda: None
        #: Called when a Segment is "stored", or a call is made again on the "store" or the "queue".
        self.on_done: Callable[[str], object] = lambda what: None
        self._segments = _Line(clock, patience_s, lambda: self.on_done("store"))
        #: Apart, so that a queue that is away does not keep Segments out of the store.
        self._messages = _Line(clock, patience_s, lambda: self.on_done("queue"))
        #: The newest Bells of others that were rung from here.
        self._rung_again: dict[Bell, None] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._is_working = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        assert self._thread is not None, "it was entered"
        self._thread.join()
        self._thread = None

    @property
    def trouble(self) -> str:
        """What keeps it from its work just now, for people."""
        return self._segments.trouble or self._messages.trouble

    @property
    def call_began(self) -> float | None:
        """When the call on the store or the queue began that is under way."""
        return self._segments.call_began or self._messages.call_began

    @property
    def is_empty(self) -> bool:
        with self._changed:
            return not self._segments and not self._messages and not self._is_working

    def store(
        self, attempt: Attempt, segment: Segment, then: Callable[[], object] | None = None
    ) -> None:
        """Store a Segment, then ring, then call `then` (an ack or a release)."""
        attempt.is_storing = True
        bell = bell_of(segment)

        def put() -> None:
            crash_points.at(
                "storing",
                attempt=bell.attempt_id,
                seq=bell.seq,
                jobs=lambda: [result.job_idx for result in segment.results],
                ends=lambda: [_end_of(checkpoint) for checkpoint in segment.checkpoints],
                closed=segment.mark.closed,
            )
            self._store.put(segment_key(bell), encode_segment(segment))
            crash_points.at("stored", attempt=bell.attempt_id, seq=bell.seq)
            attempt.is_storing = False
            self.on_stored()
            self.on_done("stored")
            self.ring(attempt.pointer.control_lane, bell)
            if then is not None:
                self.call("then", then)

        with self._changed:
            self._segments.add(_Errand("put", put))
            self._changed.notify_all()

    def ring(self, lane: str, bell: Bell) -> None:
        def send() -> None:
            crash_points.at("ringing", attempt=bell.attempt_id, seq=bell.seq)
            # The Lane of one run goes away with it: who rings late, rings for nobody.
            self._queue.send(lane, encode_bell(bell), makes_lane=lane == CONTROL_LANE)
            crash_points.at("rang", attempt=bell.attempt_id, seq=bell.seq)

        self.call("ring", send)

    def ring_again(self, lane: str, bells: Iterable[Bell]) -> None:
        """Bells that others may have lost, each once in a while: a Shard may come by often."""
        for bell in bells:
            if bell not in self._rung_again:
                self._rung_again[bell] = None
                self.ring(lane, bell)
        while len(self._rung_again) > _MAX_RUNG_AGAIN:
            del self._rung_again[next(iter(self._rung_again))]

    def call(self, what: str, call: Callable[[], object]) -> None:
        """Something for the queue, after all that was to be told to it before."""
        with self._changed:
            self._messages.add(_Errand(what, call))
            self._changed.notify_all()

    def pump(self) -> None:
        """Do what is due now, in this thread, unless there is one for it. Raises its error."""
        if self._thread is None:
            self._work()
        self.raise_error()

    def raise_error(self) -> None:
        """What cannot be repeated, or has lasted too long, ends the Worker."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait_until_empty(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Whether all was done before `give_up`. Raises its error."""
        while not self.is_empty:
            self.pump()
            if give_up():
                return False
            with self._changed:
                self._changed.wait(0.05)
        self.raise_error()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (wait_s := self._wait_s()) != 0.0:
                    self._changed.wait(wait_s)
                if self._closing:
                    return
                self._is_working = True
            self._work()
            with self._changed:
                self._is_working = False
                self._changed.notify_all()

    def _wait_s(self) -> float | None:
        waits = [w for line in (self._segments, self._messages) if (w := line.wait_s()) is not None]
        return min(waits, default=None)

    def _work(self) -> None:
        for line in (self._segments, self._messages):
            try:
                line.pump()
            except Exception as error:
                log.exception("outbox failed")
                self._error = error
