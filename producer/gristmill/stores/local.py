"""A Store in a local folder: a key is a path below it, a write is a rename."""

from __future__ import annotations

import errno
import io
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from gristmill.errors import KeyNotFound, StoreError, StoreRefused
from gristmill.stores.base import check_key, check_prefix, check_range

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: No part of a key begins with a dot, so an unfinished write is never taken for an object.
_TEMP_PREFIX = ".tmp-"

_BUFFER_BYTES = 256 * 1024

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR}


class _File(io.FileIO):
    """A file whose disk may fail while it is read."""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise StoreError(f"{self.name!s}: {error.strerror or error}.") from error

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise StoreError(f"{self.name!s}: {error.strerror or error}.") from error


class LocalStore:
    """Survives kill -9 and, as far as the disk keeps its word, a power cut."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock` is compared with the times of files."""
        self._root = root
        self._clock = clock

    def put(self, key: str, body: bytes) -> None:
        self.put_stream(key, (body,))

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> int:
        path = self._path(key)
        with self._readable_errors(key):
            self._make_folder(path.parent)
            return write_atomically(path, chunks)

    def create(self, key: str, body: bytes) -> bool:
        path = self._path(key)
        with self._readable_errors(key):
            self._make_folder(path.parent)
            temp = path.with_name(f"{_TEMP_PREFIX}{secrets.token_hex(8)}")
            write_atomically(temp, (body,))
            try:
                os.link(temp, path)
            except FileExistsError:
                return self.get(key) == body
            finally:
                temp.unlink(missing_ok=True)
            _sync_folder(path.parent)
            return True

    def get(self, key: str, *, start: int = 0, num_bytes: int | None = None) -> bytes:
        check_range(start, num_bytes)
        with self.open(key, start=start) as file:
            return file.read(-1 if num_bytes is None else num_bytes)

    def open(self, key: str, *, start: int = 0) -> BinaryIO:
        check_range(start, None)
        path = self._path(key)
        with self._readable_errors(key):
            try:
                file = _File(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise self._not_found(key) from None
            file.seek(start)
            return cast(BinaryIO, io.BufferedReader(file, _BUFFER_BYTES))

    def size(self, key: str) -> int:
        path = self._path(key)
        with self._readable_errors(key):
            try:
                if path.is_file():
                    return path.stat().st_size
            except FileNotFoundError:
                pass  # removed between the two calls
            raise self._not_found(key)

    def link(self, key: str, expires_s: int) -> str | None:
        check_key(key)
        return None

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._listed(prefix)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._readable_errors(key), suppress(NotADirectoryError):
            path.unlink(missing_ok=True)

    def remove_unfinished(self, older_than_s: float) -> int:
        """Every write touches its file, so one that is still going on is never old."""
        with self._readable_errors(""):
            return self._remove_unfinished(self._root, self._clock() - older_than_s)

    def probe(self) -> None:
        key = f"probe-{secrets.token_hex(8)}"
        self.put(key, key.encode())
        try:
            if self.get(key) != key.encode() or key not in self.list("probe-"):
                raise StoreRefused(f"{self._root} does not give back what was written to it.")
        finally:
            self.delete(key)

    def _remove_unfinished(self, folder: Path, oldest: float) -> int:
        """Also folders below this one that have been empty for so long; they are not counted."""
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except FileNotFoundError:
            return 0
        num_removed = 0
        for entry in entries:
            with suppress(FileNotFoundError):  # others may have been faster
                is_old = entry.stat(follow_symlinks=False).st_mtime <= oldest
                if entry.is_dir(follow_symlinks=False):
                    num_removed += self._remove_unfinished(Path(entry), oldest)
                    if is_old:
                        with suppress(OSError):  # it is not empty
                            os.rmdir(entry)
                elif is_old and entry.name.startswith(_TEMP_PREFIX):
                    os.unlink(entry)
                    num_removed += 1
        return num_removed

    def _not_found(self, key: str) -> KeyNotFound:
        return KeyNotFound(f"There is no object {key!r} in {self._root}.")

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _listed(self, prefix: str) -> Iterator[str]:
        with self._readable_errors(prefix):
            yield from self._walk(prefix.rpartition("/")[0], prefix)

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
            if error.errno in _FULL:
                message = f"The disk that holds {self._root} is full. Free some space and go on."
                raise StoreError(message) from error
            message = f"{self._root / key}: {error.strerror or error}."
            if error.errno in _FORBIDDEN:
                message += " The store needs a folder that this user may write to."
                raise StoreRefused(message) from error
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
