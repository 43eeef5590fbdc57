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
#: When it has failed for so long, that is a trouble.
_TROUBLE_S = 120.0


class Lanes:
    """One thread receives; any may read `names`, the first Lane first."""

    def __init__(
        self,
        queue: Queue,
        names: tuple[str, ...],
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience_s`: the end of a Worker waits so long for a first Lane that fails each time,
        and two minutes at least."""
        assert names, "a Worker listens somewhere"
        self._queue = queue
        self.names = names
        self._patience_s = max(patience_s, _TROUBLE_S)
        self._clock = clock
        self._first_again_at = clock()
        #: Since when the first Lane has failed each time, and why it did so last.
        self._failing_since: float | None = None
        self._reason = ""
        #: Whether the latest look left none of its Lanes out, but one that is not waited for.
        self.has_asked_all = False

    @property
    def trouble(self) -> str:
        """Why the first Lane cannot be used, for people; empty while that may pass in a moment."""
        failing_s = self._failing_s()
        if failing_s < _TROUBLE_S:
            return ""
        return f"The Lane {self.names[0]} has failed for {failing_s:.0f} s ({self._reason})."

    def check_asked(self, *, is_stopped: bool) -> None:
        """Raises QueueError when the end came without a word from the first Lane, unbidden."""
        if not is_stopped and self._failing_s() >= self._patience_s:
            raise QueueError(
                f"The worker ends since its other Lanes are empty, but {self.names[0]} has failed "
                f"for {self._failing_s():.0f} s ({self._reason}): work may wait there. What this "
                "worker had is saved. Mend the queue and start it again, or leave that Lane out: "
                f"--lanes {','.join(self.names[1:])}."
            )

    def _failing_s(self) -> float:
        since = self._failing_since  # asked by other threads, too
        return 0.0 if since is None else self._clock() - since

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
            self.has_asked_all = not has_pause or self._failing_s() >= self._patience_s
            try:
                found = self._queue.receive(
                    names, 1, wait_s, max_rows=max_rows, max_tokens=max_tokens
                )
                if not has_pause:
                    self._failing_since = None
                return found
            except QueueRefused as error:
                if len(self.names) == 1:
                    raise
                log.warning("lane given up lane=%s reason=%s", names[0], error)
                self.names = tuple(name for name in self.names if name != names[0])
                self._failing_since = None
            except QueueError as error:
                if len(names) < len(self.names) or len(self.names) == 1:
                    raise
                log.info("lane left out for a while lane=%s reason=%s", names[0], error)
                self._first_again_at = self._clock() + _PAUSE_S
                self._reason = str(error)
                if self._failing_since is None:
                    self._failing_since = self._clock()
