"""Shows how far a batch is, on stderr: a bar on a terminal or in a notebook, else plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gristmill.client.state import BatchState
from gristmill.values import format_bytes, format_duration

PLAIN_INTERVAL_S = 10.0
#: Speed is that of the last so many looks.
_WINDOW = 20


class Pace:
    """Tokens and rows a second, and the time left, from one look to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looks: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW)
        self.tokens_per_s = 0.0
        self.rows_per_s = 0.0

    def see(self, state: BatchState) -> None:
        self._looks.append((self._clock(), state.output_tokens, state.done))
        (since, tokens, rows), (now, tokens_now, rows_now) = self._looks[0], self._looks[-1]
        if now > since:
            self.tokens_per_s = (tokens_now - tokens) / (now - since)
            self.rows_per_s = (rows_now - rows) / (now - since)

    def eta_s(self, state: BatchState) -> float | None:
        if self.rows_per_s <= 0 or state.total == 0:
            return None
        return (state.total - state.done) / self.rows_per_s


def describe(state: BatchState, pace: Pace) -> str:
    """One line."""
    parts = [f"{state.status}: {state.done:,}/{state.total:,} rows"]
    if state.failed:
        parts.append(f"{state.failed:,} failed")
    if not state.has_ended:
        if pace.tokens_per_s > 0:
            parts.append(f"{pace.tokens_per_s:,.1f} tokens/s")
        eta_s = pace.eta_s(state)
        if eta_s:
            parts.append(f"{format_duration(eta_s)} left")
    return ", ".join(parts)


@contextmanager
def progress_shown(wanted: bool) -> Iterator[Callable[[BatchState], None]]:
    """Gives what is to be called with each state. GRISTMILL_NO_PROGRESS turns it off."""
    if not wanted or os.environ.get("GRISTMILL_NO_PROGRESS"):
        yield lambda state: None
        return
    from rich.console import Console

    console = Console(file=sys.stderr)
    pace = Pace()
    if not (console.is_terminal or console.is_jupyter) or console.is_dumb_terminal:
        yield _plain_lines(pace)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
    from rich.table import Column

    with Progress(
        SpinnerColumn(),
        BarColumn(bar_width=12),
        TaskProgressColumn(),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        console=console,
    ) as bar:
        task = bar.add_task("asking", total=None)

        def show(state: BatchState) -> None:
            pace.see(state)
            bar.update(
                task,
                completed=state.done,
                total=state.total or None,
                description=describe(state, pace),
            )

        yield show


@contextmanager
def upload_shown(wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """Gives what is to be called with the bytes of an upload: so many of so many."""
    if not wanted or os.environ.get("GRISTMILL_NO_PROGRESS"):
        yield lambda done, total: None
        return
    next_at = time.monotonic() + PLAIN_INTERVAL_S
    is_drawn = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now < next_at and not is_drawn:
            return
        next_at = now + PLAIN_INTERVAL_S
        text = f"uploading: {format_bytes(done)} of {format_bytes(total)}"
        print(f"\r{text:<40}" if is_drawn else text, end="" if is_drawn else "\n", file=sys.stderr)

    yield show
    if is_drawn:
        print(f"\r{'':<40}\r", end="", file=sys.stderr, flush=True)


def _plain_lines(pace: Pace) -> Callable[[BatchState], None]:
    next_at, last_status = 0.0, ""

    def show(state: BatchState) -> None:
        nonlocal next_at, last_status
        pace.see(state)
        now = time.monotonic()
        if now >= next_at or state.status != last_status:
            next_at, last_status = now + PLAIN_INTERVAL_S, state.status
            print(describe(state, pace), file=sys.stderr, flush=True)

    return show
