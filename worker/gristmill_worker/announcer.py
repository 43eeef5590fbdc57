"""Says on the control lane what this Worker is and how it is, apart from the engine loop.

A beat may be lost, so nothing waits for one: a queue that is away costs nothing but beats.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from gristmill.errors import GristmillError
from gristmill.fleet import BEAT_EVERY_S, WorkerBeat, WorkerCard, WorkerState
from gristmill.message_wire import encode_beat
from gristmill.queues.base import Queue
from gristmill.types import CONTROL_LANE

log = logging.getLogger(__name__)

#: How long the end of a process waits for its last beat at most.
_LAST_WORD_S = 3.0
#: Where so many messages wait, nobody takes them, and no beat is added.
_MAX_UNHEARD = 20_000


class Announcer:
    """`start` it, then enter it when the Worker is ready; leaving it says that it has ended."""

    def __init__(
        self,
        queue: Queue,
        card: WorkerCard,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        #: What is known of the Worker; another thread may put a fuller one in its place.
        self.card = card
        #: Fills in how the Worker is just now, in the thread of the beats.
        self.fill: Callable[[WorkerBeat], WorkerBeat] = lambda beat: beat
        self._monotonic = monotonic
        self._wall = wall
        self._state = WorkerState.LOADING
        self._seq = 0
        #: When the last beat was made, and how many tokens had been computed by then.
        self._beat_at, self._num_tokens = monotonic(), 0
        #: Why the last beat was not sent.
        self._trouble = ""
        self._changed, self._ending = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on it beats, first of all that the Worker loads."""
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self.say(WorkerState.READY)
        if self._thread is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, state: WorkerState) -> None:
        """The Worker is in another state, which is told at once. Waits for nothing."""
        self._state = state
        self._changed.set()

    def close(self) -> None:
        """The Worker has ended; its last beat says so, if that does not take long."""
        self._state = WorkerState.ENDED
        # Before the thread is woken, or it would wait once more for its next beat.
        self._ending.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_LAST_WORD_S)
            self._thread = None

    def beat(self) -> WorkerBeat:
        """The next beat. One thread at a time may make them."""
        beat = self.fill(WorkerBeat(self.card, self._seq, self._state, self._wall()))
        now, num_tokens = self._monotonic(), beat.num_prefill_tokens + beat.num_generated_tokens
        elapsed_s = now - self._beat_at
        tokens_per_s = (num_tokens - self._num_tokens) / elapsed_s if elapsed_s > 0 else 0.0
        self._seq += 1
        self._beat_at, self._num_tokens = now, num_tokens
        return replace(beat, tokens_per_s=round(max(tokens_per_s, 0.0), 1))

    def send(self) -> None:
        """Make a beat and put it on the control lane, if anybody takes it from there."""
        beat = self.beat()
        try:
            if self._queue.stats(CONTROL_LANE).visible < _MAX_UNHEARD:
                self._queue.send(
                    CONTROL_LANE,
                    encode_beat(beat),
                    # Where nobody listens, one of each state waits, and not one every ten seconds.
                    message_id=f"{beat.worker_id}/{beat.state}",
                    makes_lane=False,
                )
            self._trouble = ""
        except GristmillError as error:
            if str(error) != self._trouble:
                log.warning("beats not sent reason=%s", error)
            self._trouble = str(error)

    def _run(self) -> None:
        while True:
            self._changed.clear()
            is_last = self._ending.is_set()
            try:
                self.send()
            except Exception:
                log.exception("beat not sent")
            if is_last:
                return
            # Workers that were started together shall not beat together.
            self._changed.wait(BEAT_EVERY_S * random.uniform(0.9, 1.0))
