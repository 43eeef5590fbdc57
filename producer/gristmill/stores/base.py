"""What a Store promises: whole objects under checked keys, readable as soon as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol

from gristmill.errors import StoreRefused

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")

#: A link that can be read without credentials ends at the latest after a week (S3's own limit).
MAX_LINK_S = 7 * 24 * 3600


def is_key(key: str) -> bool:
    """Whether each part is plain ASCII and does not begin with a dot."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str) -> None:
    """Raises StoreRefused unless this is a key."""
    if not is_key(key):
        raise StoreRefused(
            f"{key[:200]!r} is not a key: its parts hold letters, digits, '.', '_' and '-', "
            "and do not begin with a dot."
        )


def check_prefix(prefix: str) -> None:
    """Raises StoreRefused unless keys can begin like this."""
    folder = prefix.rpartition("/")[0]
    if folder:
        check_key(folder)


def check_range(start: int, num_bytes: int | None) -> None:
    """Raises StoreRefused for a range that no object can have."""
    if start < 0 or (num_bytes is not None and num_bytes < 0):
        raise StoreRefused(
            f"Bytes {start} and {num_bytes} more are no range: neither may be negative."
        )


class Store(Protocol):
    """Any thread may call any method. An object is there as a whole or not at all.

    Nothing is ever overwritten with other bytes: to put the same bytes again is harmless.
    All methods raise StoreError when the store cannot do what was asked: StoreRefused when it
    will say no again (a bad key, no permission), another StoreError when it may work later.
    """

    def put(self, key: str, body: bytes) -> None:
        """Write an object. It is on stable storage when this returns."""

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> int:
        """Write an object piece by piece, in constant memory, and return its size in bytes."""

    def create(self, key: str, body: bytes) -> bool:
        """Write an object unless there is one. False, and no effect, when other bytes are there.

        Of several at once one wins, except on a server without conditional writes (`probe`
        finds out), so nothing that must be exact may rest on it.
        """

    def get(self, key: str, *, start: int = 0, num_bytes: int | None = None) -> bytes:
        """An object, or a range of it; what lies beyond its end is empty. Raises KeyNotFound."""

    def open(self, key: str, *, start: int = 0) -> BinaryIO:
        """Read an object from byte `start` on, piece by piece; the caller closes it.

        Never ends early without an error: reading raises StoreError. Raises KeyNotFound.
        """

    def size(self, key: str) -> int:
        """The size of an object in bytes. Raises KeyNotFound."""

    def link(self, key: str, expires_s: int) -> str | None:
        """A URL that anybody can GET for `expires_s` seconds; None when this store has none.

        Does not look whether the object is there. Raises StoreRefused above `MAX_LINK_S`.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted."""

    def delete(self, key: str) -> None:
        """Remove an object; no error when there is none."""

    def remove_unfinished(self, older_than_s: float) -> int:
        """Remove what writes that began so long ago and never ended left; returns how many."""

    def probe(self) -> None:
        """Write, read back, list and remove something, at start-up.

        Raises StoreError that says what is wrong and what to do about it.
        """
