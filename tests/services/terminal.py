"""A command on a real pseudo terminal: what it draws is read, and keys are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Self

CTRL_C = "\x03"
_PATIENCE_S = 60.0
#: The terminal becomes that of the process itself, so that Ctrl-C reaches it; and is heeded, also
#: when the tests run as a job in the background of a shell, which has it ignored.
_START = (
    "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from gristmill.cli import main; main()"
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`gristmill ARGV` on a terminal of 24 lines of 100 characters."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environ},
        )
        os.close(slave)
        self._shown = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    @property
    def raw(self) -> str:
        """All that came, with what moves the cursor and colours."""
        return self._shown.decode("utf-8", "replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self.raw)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, pattern: str, *, behind: int = 0) -> int:
        """Until the text has it, behind so many characters; where the match ends."""
        give_up_at = time.monotonic() + _PATIENCE_S
        while (found := re.compile(pattern).search(self.text, behind)) is None:
            assert time.monotonic() < give_up_at, self.text
            assert self._read(), self.text
        return found.end()

    def wait(self) -> int:
        """The exit code, after all that is shown."""
        give_up_at = time.monotonic() + _PATIENCE_S
        while self._read():
            assert time.monotonic() < give_up_at, self.text
        return self.process.wait(_PATIENCE_S)

    def _read(self) -> bool:
        """What comes within a moment; False at the end."""
        if not select.select([self._master], [], [], 0.2)[0]:
            return True
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # nobody has the other side open any more
            return False
        self._shown += piece
        return bool(piece)
