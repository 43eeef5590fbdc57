"""The progress bar on a terminal. Imported only when there is one."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.table import Column

from gristmill import local
from gristmill.cli.progress import describe


class BarProgress:
    """One bar: bytes while the input is read, rows from then on."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=12),
            TaskProgressColumn(),
            # One line on any terminal: what does not fit is cut, never wrapped.
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._equipment = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, progress: local.Progress) -> None:
        """Set the bar; rich draws it ten times a second at most."""
        if progress.equipment != self._equipment:
            self._equipment = progress.equipment
            self._bar.console.print(f"engine: {progress.equipment}", highlight=False)
        if progress.phase == "reading":
            done, total = progress.bytes_read, progress.bytes_total
        else:
            done, total = progress.completed + progress.failed, progress.total
        self._bar.update(
            self._task,
            completed=done,
            total=total or None,
            description=describe(progress),
        )
