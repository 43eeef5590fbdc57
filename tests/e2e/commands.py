"""Starts commands of `gristmill` as processes: the installed one, or forked from a nursery."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gristmill_process import COMMAND
from nursery import Nursery

NURSERY = Path(__file__).with_name("nursery_process.py")
_START_S, _END_S = 600.0, 60.0


class Child(Protocol):
    pid: int

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass
class Forked:
    pid: int
    nursery: Nursery

    def wait(self, timeout: float | None = None) -> int:
        return self.nursery.wait(self.pid, timeout)


@dataclass
class Running:
    """A command that runs, until it is ended one way or the other."""

    child: Child
    out: Path
    err: Path
    is_over: bool = False

    def told(self, pattern: str) -> str:
        """The group of the pattern, as soon as it is printed."""
        give_up_at = time.monotonic() + _START_S
        while not (found := re.search(pattern, self.out.read_text(), re.MULTILINE)):
            assert time.monotonic() < give_up_at, self.err.read_text()
            time.sleep(0.05)
        return found[1]

    def kill(self) -> None:
        """As by kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As by a supervisor; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        self.is_over = True
        os.kill(self.child.pid, number)
        return self.child.wait(_END_S)


@dataclass
class Commands:
    folder: Path
    environ: dict[str, str]
    #: None: the installed command, with the Engine that it finds.
    nursery: Nursery | None
    running: list[Running] = field(default_factory=list)

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def start(self, *argv: str) -> Running:
        """Begin `gristmill ARGV`."""
        name = f"{len(self.running)}-{argv[0]}"
        out, err = self.folder / f"{name}.out", self.folder / f"{name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            if self.nursery is None:
                command = [str(COMMAND), *argv]
                environ = {**os.environ, **self.environ}
                child: Child = subprocess.Popen(command, env=environ, stdout=stdout, stderr=stderr)
        if self.nursery is not None:
            environ = {k: v for k, v in os.environ.items() if k.startswith("AWS_")} | self.environ
            order = {
                "argv": argv,
                "environ": environ,
                "out": str(out),
                "err": str(err),
                "gate": str(self.gate),
            }
            child = Forked(self.nursery.bear(order), self.nursery)
        self.running.append(Running(child, out, err))
        return self.running[-1]

    def close(self) -> None:
        """Kill what still runs, and show what all of them said (pytest does when a test fails)."""
        for running in self.running:
            if not running.is_over:
                running.kill()
            print(f"--- {running.err.name}\n{running.err.read_text()}")
