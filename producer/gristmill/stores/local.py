"""A Store in a local folder: a key is a path below it, a write is a rename."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gristmill.errors import KeyNotFound, StoreError
from gristmill.stores.base import check_key

#: No part of a key begins with a dot, so an unfinished write is never taken for an object.
_TEMP_PREFIX = ".tmp-"


class LocalStore:
    """Survives kill -9 and, as far as the disk keeps its word, a power cut."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, body: bytes) -> None:
        self.put_stream(key, (body,))

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> int:
        path = self._path(key)
        with self._readable_errors(key):
            self._make_folder(path.parent)
            return write_atomically(path, chunks)

    def get(self, key: str) -> bytes:
        with self.open(key) as file, self._readable_errors(key):
            return file.read()

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        with self._readable_errors(key):
            try:
                return path.open("rb")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise KeyNotFound(f"There is no object {key!r} in {self._root}.") from None

    def list(self, prefix: str) -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        if folder:
            check_key(folder)
        return self._walk(folder, prefix)

    def delete(self, key: str) -> None:
        with self._readable_errors(key):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _walk(self, folder: str, prefix: str) -> Iterator[str]:
        """Keys below a folder in the order of whole keys: `a.b` comes before `a/b`."""
        try:
            with os.scandir(self._root / folder) as entries:
                names = [f"{e.name}/" if e.is_dir() else e.name for e in entries]
        except (FileNotFoundError, NotADirectoryError):
            return
        base = f"{folder}/" if folder else ""
        for name in sorted(names):
            key = base + name
            if name.startswith(".") or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(key[:-1], prefix)
            elif key.startswith(prefix):
                yield key

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        _sync_folder(folder.parent)

    @contextmanager
    def _readable_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = f"The disk that holds {self._root} is full. Free some space and go on."
            else:
                message = f"{self._root / key}: {error.strerror or error}."
            raise StoreError(message) from error


def write_atomically(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a file as a whole or not at all, and return its size. Raises OSError."""
    temp = path.with_name(f"{_TEMP_PREFIX}{secrets.token_hex(8)}")
    num_bytes = 0
    try:
        with temp.open("xb") as file:
            for chunk in chunks:
                num_bytes += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        with suppress(OSError):
            temp.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return num_bytes


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
