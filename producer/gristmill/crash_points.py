"""Named places where order matters: tests follow a process through them, and break it there.

Not for users: two variables of the environment, which tests alone set. GRISTMILL_HISTORY names a
file to which each passing is appended, one JSON object a line. GRISTMILL_CRASH_POINT says what
happens at one of them, as `stored=exit` or, at its third passing, `stored=exit:3`.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.errors import StoreError, UsageError

HISTORY, CRASH_POINT = "GRISTMILL_HISTORY", "GRISTMILL_CRASH_POINT"
#: What a process that exits at a crash point ends with: as after SIGKILL in a shell.
EXIT_CODE = 137

#: By side, in the order in which a Shard comes by. Those in -ing stand before what they tell of.
WORKER_POINTS = (
    *(
        "received",
        "fetched",
        "reading",
        "opening",
        "opened",
        "storing",
        "stored",
        "ringing",
        "rang",
    ),
    *("acking", "acked", "releasing", "released", "renewing", "renewed"),
)
CONTROL_POINTS = (
    *("batch-described", "shard-written", "window-recording", "window-recorded", "ingested"),
    *("sending", "sent", "heard", "accepting", "accepted", "bells-acked"),
    *("freezing", "frozen", "frozen-listed", "slice-written", "slice-merged"),
    *("file-written", "publishing", "published", "removing"),
)


class CrashPointReached(RuntimeError):
    """A test wanted it so."""


def _exit() -> None:
    os._exit(EXIT_CODE)


def _hang() -> None:
    while True:
        time.sleep(3600)


def _raise() -> None:
    raise CrashPointReached("A test has made this process fail here.")


def _fail() -> None:
    raise StoreError("A test has made the store fail here, as in an outage.")


def _freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.05)  # the signal may reach this thread a moment later than others


#: `hang` stops one thread, `freeze` the whole process, until it gets SIGCONT.
ACTIONS: dict[str, Callable[[], None]] = {
    "exit": _exit,
    "hang": _hang,
    "raise": _raise,
    "fail": _fail,
    "freeze": _freeze,
}


class _Watch:
    """Appends to the history of this process, and counts the passings of its crash point."""

    def __init__(self, history: str, plan: str) -> None:
        self._file = -1
        if history:
            self._file = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._point, self._act, self._countdown = _parse(plan) if plan else ("", _raise, 0)
        self._lock = threading.Lock()

    def pass_by(self, point: str, facts: dict[str, Any]) -> None:
        if self._file >= 0:
            told = {name: value() if callable(value) else value for name, value in facts.items()}
            line = {"e": point, "t": time.monotonic(), "pid": os.getpid(), **told}
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if point == self._point:
            with self._lock:
                self._countdown -= 1
                is_its_turn = self._countdown == 0
            if is_its_turn:
                self._act()


_watch: _Watch | None = None


def at(point: str, /, **facts: Any) -> None:
    """This process is at a named place. Costs nothing where no test watches.

    A fact that takes time to put together is given as a function that does.
    """
    if _watch is not None:
        _watch.pass_by(point, facts)


def arm(environ: Mapping[str, str]) -> None:
    """Watch as the environment says. Raises UsageError for a plan that names nothing."""
    global _watch
    history, plan = environ.get(HISTORY, ""), environ.get(CRASH_POINT, "")
    _watch = _Watch(history, plan) if history or plan else None


def _parse(plan: str) -> tuple[str, Callable[[], None], int]:
    point, _, rest = plan.partition("=")
    action, _, nth = rest.partition(":")
    if point not in WORKER_POINTS + CONTROL_POINTS or action not in ACTIONS:
        raise UsageError(
            f"{CRASH_POINT} is {plan!r}, which is no POINT=ACTION[:N] with one of "
            f"{', '.join(WORKER_POINTS + CONTROL_POINTS)} and one of {', '.join(ACTIONS)}."
        )
    if nth and not (nth.isdigit() and int(nth)):
        raise UsageError(f"{CRASH_POINT} is {plan!r}: N is a whole number from 1.")
    return point, ACTIONS[action], int(nth or 1)


arm(os.environ)
