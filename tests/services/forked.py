"""Processes that are forked from a nursery: as subprocess.Popen, but for their start."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

from nursery import Nursery


@cache
def nursery_of(script: Path) -> Nursery:
    """One for all tests of this process: what its script imports takes seconds."""
    nursery = Nursery(script)
    atexit.register(nursery.close)
    return nursery


@cache
def _said() -> Path:
    """A folder for what they say, so that nothing is added to the folders that they work in."""
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


class Forked:
    """A command, `argv`, of a nursery's script, with this environment and no other.

    `more` goes into the order. What it says goes to the files `out` and `err`.
    """

    def __init__(
        self,
        script: Path,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        cwd: Path | None = None,
        **more: Any,
    ) -> None:
        self._argv = argv
        self._nursery = nursery_of(script)
        self.out, self.err = (_said() / f"{os.urandom(8).hex()}.{name}" for name in ("out", "err"))
        for path in (self.out, self.err):
            path.touch()
        order = {
            "argv": list(argv),
            "environ": dict(environ),
            "cwd": str(cwd or Path.cwd()),
            "out": str(self.out),
            "err": str(self.err),
        }
        self.pid = self._nursery.bear(order | more)

    @property
    def returncode(self) -> int | None:
        return self._nursery.exit_code(self.pid)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._nursery.wait(self.pid, timeout)
        except AssertionError as error:
            raise TimeoutExpired(list(self._argv), timeout or 0.0) from error

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has said on stdout and stderr by its end."""
        self.wait(timeout)
        out, err = (path.read_text(encoding="utf-8") for path in (self.out, self.err))
        return out, err

    def completed(self, timeout: float) -> CompletedProcess[str]:
        """As subprocess.run; killed when it does not end in time."""
        try:
            out, err = self.communicate(timeout)
        finally:
            self.kill()
        return CompletedProcess(list(self._argv), self.wait(), out, err)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def is_stopped(self) -> bool:
        """Whether it holds still since a SIGSTOP."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        return state == "T"
