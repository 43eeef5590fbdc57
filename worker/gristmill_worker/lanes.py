"""The Lanes that this Worker takes its messages from."""

from __future__ import annotations

import logging

from gristmill.errors import QueueRefused
from gristmill.queues.base import Lease, Queue

log = logging.getLogger(__name__)


class Lanes:
    """One thread receives; any may read `names`, the first Lane first."""

    def __init__(self, queue: Queue, names: tuple[str, ...]) -> None:
        assert names, "a Worker listens somewhere"
        self._queue = queue
        self.names = names

    def receive(
        self, wait_s: float, *, max_rows: int | None, max_tokens: int | None
    ) -> list[Lease]:
        """The next message, if there is one within `wait_s`.

        A Lane that the queue refuses is given up while there is another: this process may have no
        right to make that of its pool. Raises QueueError.
        """
        while True:
            try:
                return self._queue.receive(
                    self.names, 1, wait_s, max_rows=max_rows, max_tokens=max_tokens
                )
            except QueueRefused as error:
                if len(self.names) == 1:
                    raise
                log.warning("lane given up lane=%s reason=%s", self.names[0], error)
                self.names = self.names[1:]
