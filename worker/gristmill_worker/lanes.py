"""The Lanes that this Worker takes its messages from."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gristmill.errors import QueueError, QueueRefused
from gristmill.queues.base import Lease, Queue

log = logging.getLogger(__name__)

#: A first Lane that cannot be used just now is tried again after so long. SQS lets nobody make one
#: for a minute that was taken away, as that of a pool is when its last Worker has ended.
_PAUSE_S = 20.0


class Lanes:
    """One thread receives; any may read `names`, the first Lane first."""

    def __init__(
        self,
        queue: Queue,
        names: tuple[str, ...],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert names, "a Worker listens somewhere"
        self._queue = queue
        self.names = names
        self._clock = clock
        self._first_again_at = clock()
        #: Whether the latest look left none of its Lanes out.
        self.has_asked_all = False

    def receive(
        self, wait_s: float, *, max_rows: int | None, max_tokens: int | None
    ) -> list[Lease]:
        """The next message, if there is one within `wait_s`.

        While there is another Lane, one that the queue refuses is given up, since this process may
        have no right to make that of its pool, and one that fails is left out for a while. Raises
        QueueError.
        """
        while True:
            has_pause = len(self.names) > 1 and self._clock() < self._first_again_at
            names = self.names[1:] if has_pause else self.names
            self.has_asked_all = not has_pause
            try:
                return self._queue.receive(
                    names, 1, wait_s, max_rows=max_rows, max_tokens=max_tokens
                )
            except QueueRefused as error:
                if len(self.names) == 1:
                    raise
                log.warning("lane given up lane=%s reason=%s", names[0], error)
                self.names = tuple(name for name in self.names if name != names[0])
            except QueueError as error:
                if len(names) < len(self.names) or len(self.names) == 1:
                    raise
                log.info("lane left out for a while lane=%s reason=%s", names[0], error)
                self._first_again_at = self._clock() + _PAUSE_S
