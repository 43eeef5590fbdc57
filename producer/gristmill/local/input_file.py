"""The input of a local run: read again after an interruption, so it must stay what it was."""

from __future__ import annotations

import hashlib
from io import BufferedReader
from pathlib import Path

from gristmill.errors import UsageError


class InputFile:
    """The input file, and whether it is still what it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._stat = path.stat()
        except OSError as error:
            raise UsageError(f"The input {path} cannot be read: {error.strerror}.") from error
        self.num_bytes = self._stat.st_size

    def open(self) -> BufferedReader:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise UsageError(f"The input {self._path} cannot be read: {error.strerror}.") from error

    def fingerprint(self) -> str:
        with self.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def check_unchanged(self) -> None:
        """Raises UsageError when somebody wrote to the file since the run began."""
        now = self._path.stat()
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise UsageError(
                f"The input {self._path} was changed while it was read. Run a copy of it that "
                "nobody writes to, with another --work-dir."
            )
