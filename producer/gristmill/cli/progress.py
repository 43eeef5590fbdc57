"""Shows how far a run is, on stderr: a bar on a terminal, else a plain line every ten seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from gristmill.values import format_duration

if TYPE_CHECKING:
    from gristmill.local import Phase, Progress

PLAIN_INTERVAL_S = 10.0

_QUIET_LIBRARIES = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

_PHASE_WORDS: dict[Phase, str] = {
    "reading": "reading the input",
    "loading": "loading the model",
    "running": "answering",
    "writing": "writing the results",
}


class ProgressView(Protocol):
    """What shows progress; `update` may be called often and must be cheap."""

    def update(self, progress: Progress) -> None:
        """Show this state of the run, at once or with the next refresh."""


def keep_stderr_ours() -> None:
    """Switch off the bars and warnings of the libraries that load models.

    They would be drawn across ours, and land in logs. Call it before those libraries are imported;
    who sets the variables wins.
    """
    for name, value in _QUIET_LIBRARIES.items():
        os.environ.setdefault(name, value)


def progress_view(stream: TextIO, *, wanted: bool) -> AbstractContextManager[ProgressView]:
    """The view that fits the stream: a bar, plain lines, or nothing."""
    if not wanted:
        return nullcontext(NoProgress())
    from rich.console import Console

    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        from gristmill.cli.progress_bar import BarProgress

        return BarProgress(console)
    return PlainProgress(stream)


class NoProgress:
    """Shows nothing."""

    def update(self, progress: Progress) -> None:
        """Drop it."""


class PlainProgress:
    """One line when a phase begins and every ten seconds after that, for logs."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._phase: Phase | None = None
        self._equipment = ""
        self._next_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, progress: Progress) -> None:
        """Print a line if one is due."""
        if progress.equipment != self._equipment:
            self._equipment = progress.equipment
            print(f"engine: {progress.equipment}", file=self._stream, flush=True)
        now = self._clock()
        if progress.phase == self._phase and now < self._next_at:
            return
        self._phase = progress.phase
        self._next_at = now + PLAIN_INTERVAL_S
        print(describe(progress), file=self._stream, flush=True)


def describe(progress: Progress) -> str:
    """The state of a run in one line."""
    words = _PHASE_WORDS[progress.phase]
    if progress.phase == "reading":
        return f"{words}: {percent(progress.bytes_read, progress.bytes_total)}"
    if progress.phase == "loading":
        return words
    done = progress.completed + progress.failed
    return f"{words}: {done:,}/{progress.total:,} rows{details(progress)}"


def details(progress: Progress) -> str:
    """What follows the count of rows: failures, speed and the time left, as far as known."""
    parts = [f"{progress.failed:,} failed"] if progress.failed else []
    if progress.phase == "running":
        if progress.tokens_per_s > 0:
            parts.append(f"{progress.tokens_per_s:.1f} tokens/s")
        if progress.eta_s:
            parts.append(f"{format_duration(progress.eta_s)} left")
    return "".join(f", {part}" for part in parts)


def percent(part: int, whole: int) -> str:
    """`part` of `whole` in whole per cent; an empty whole is done."""
    return "100 %" if whole <= 0 else f"{100 * part // whole} %"
