"""What a Store promises: whole objects under checked keys, readable as soon as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol

from gristmill.errors import StoreError

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def check_key(key: str) -> None:
    """Raises StoreError unless each part is plain ASCII and does not begin with a dot."""
    if not _KEY.fullmatch(key):
        raise StoreError(
            f"{key[:200]!r} is not a key: its parts hold letters, digits, '.', '_' and '-', "
            "and do not begin with a dot."
        )


class Store(Protocol):
    """Any thread may call any method. An object is there as a whole or not at all.

    All methods raise StoreError when the store cannot do what was asked.
    """

    def put(self, key: str, body: bytes) -> None:
        """Write an object. It is on stable storage when this returns."""

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> int:
        """Write an object piece by piece, and return its size in bytes."""

    def get(self, key: str) -> bytes:
        """Raises KeyNotFound."""

    def open(self, key: str) -> BinaryIO:
        """Read an object piece by piece; the caller closes it. Raises KeyNotFound."""

    def list(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted."""

    def delete(self, key: str) -> None:
        """Remove an object; no error when there is none."""
