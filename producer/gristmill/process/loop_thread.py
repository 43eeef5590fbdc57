"""A loop in a thread of its own, beside others that stop with it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LoopThread:
    """Runs from the start. A loop that fails sets `stop`, and `join` raises what it failed of."""

    def __init__(
        self, run: Callable[[threading.Event], None], stop: threading.Event, *, name: str
    ) -> None:
        self._run, self._stop = run, stop
        self._error: BaseException | None = None
        # A daemon, so that a second signal ends the process.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Until the loop has ended. Raises what ended it before its time."""
        self._thread.join()
        self.raise_error()

    def raise_error(self) -> None:
        """Raises what has ended the loop before its time, if anything has."""
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            self._run(self._stop)
        except BaseException as error:
            self._error = error
            self._stop.set()
