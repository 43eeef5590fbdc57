"""Starts commands of `gristmill` as processes: the installed one, or forked from a nursery."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gristmill_process import COMMAND

NURSERY = Path(__file__).with_name("nursery_process.py")
_END_S = 60.0


class Child(Protocol):
    pid: int

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass
class Nursery:
    """Spares each process the seconds that its imports take."""

    process: subprocess.Popen[str]
    _ends: dict[int, int] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Nursery]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, NURSERY], stdin=pipe, stdout=pipe, text=True)
        nursery = cls(process)
        assert nursery._read() == ["ready"]
        yield nursery
        process.communicate()

    def bear(self, order: dict[str, object]) -> int:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        while (words := self._read())[0] != "born":
            self._ends[int(words[1])] = int(words[2])
        return int(words[1])

    def wait(self, pid: int) -> int:
        while pid not in self._ends:
            _, dead, code = self._read()
            self._ends[int(dead)] = int(code)
        return self._ends[pid]

    def _read(self) -> list[str]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the nursery has ended"
        return line.split()


@dataclass
class Forked:
    pid: int
    nursery: Nursery

    def wait(self, timeout: float | None = None) -> int:
        return self.nursery.wait(self.pid)


@dataclass
class Running:
    """A command that runs, until it is ended one way or the other."""

    child: Child
    out: Path
    err: Path
    is_over: bool = False

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
