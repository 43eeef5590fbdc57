"""SIGTERM and Ctrl-C: the first one asks to stop, the second one or the end of the grace ends.

SIGUSR1 says that the machine will go, and asks to stop as well.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

#: Ends the process, with an exit code, without any more ado.
End = Callable[[int], None]


class StopSignals:
    """While entered, `stop` is set by the first signal.

    Until `hold` is called there is nothing to save, and the first signal ends the process. Ending
    at once is always safe: what is not saved is done again, as after kill -9. Whoever hears in
    another way that the machine will go calls `drain`, or from another process sends SIGUSR1; the
    first SIGTERM after that is no second one, since most supervisors send theirs when they have
    heard the same.
    """

    def __init__(self, *, grace_s: float, at_once_code: int, end: End = os._exit) -> None:
        self.stop = threading.Event()
        self._grace_s = grace_s
        self._at_once_code = at_once_code
        self._end = end
        self._is_holding = False
        self._was_signalled = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        notice = getattr(signal, "SIGUSR1", None)  # not on Windows
        if notice is not None:
            self._previous[notice] = signal.signal(notice, self._on_notice)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def hold(self) -> None:
        """From now on there is work to save."""
        self._is_holding = True

    def drain(self) -> None:
        """Ask to stop, as the first signal does. Any thread may call it."""
        if not self._is_holding:
            self._end(0)
        elif not self.stop.is_set():
            self.stop.set()
            timer = threading.Timer(self._grace_s, self._end, (self._at_once_code,))
            timer.daemon = True
            timer.start()

    def _on_notice(self, _number: int, _frame: FrameType | None) -> None:
        self.drain()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._was_signalled:
            self._end(self._at_once_code)
            return
        self._was_signalled = self._is_holding
        self.drain()
