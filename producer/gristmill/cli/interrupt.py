"""Ctrl-C: the first one asks the run to stop and keep its work, the second ends the process."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Self

from gristmill.cli.failures import ExitCode

_STOPPING = b"\nStopping: what is done is being kept. Press Ctrl-C again to end at once.\n"
_SHOW_CURSOR = b"\x1b[?25h"


class StopOnSignal:
    """While entered, SIGINT and SIGTERM set `requested`, which a run polls as `should_stop`.

    Messages go straight to the file descriptor: a signal may land in the middle of a write to
    stderr, where Python's buffered streams refuse a second one. Ending at once is safe because
    the run survives kill -9 at any moment.
    """

    def __init__(self) -> None:
        self._requested = False
        self._previous: dict[signal.Signals, object] = {}

    def requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self._requested

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._requested:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            os._exit(ExitCode.INTERRUPTED)
        self._requested = True
        os.write(2, _STOPPING)
