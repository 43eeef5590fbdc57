"""A folder that one process has to itself: others are told so, and a dead one never holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gristmill.errors import UsageError

_LOCK = "gristmill.lock"


class FolderLock:
    """Held from `take` to `drop`; the kernel drops that of a process that dies."""

    def __init__(self, folder: Path, *, taken: str) -> None:
        """`taken` is what the error says when another process has the folder."""
        self._path = folder / _LOCK
        self._taken = taken
        self._lock = -1

    def take(self) -> None:
        """Raises UsageError when another process holds it, OSError when it cannot be made."""
        while True:
            lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise UsageError(self._taken) from None
            # A process that has just ended may have removed the file that was opened here.
            if _is_file_at(lock, self._path):
                self._lock = lock
                return
            os.close(lock)

    def drop(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Take the file away, too."""
        self._path.unlink(missing_ok=True)


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
