"""The rows of an ended batch out of its result files, to be read on from any of them.

For the results endpoint, once the Segments that told the order of acceptance are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from gristmill.control.merge import NEVER_RUN_CODES
from gristmill.errors import UsageError
from gristmill.stores.base import Store
from gristmill.stores.keys import file_key

_ORDER = ("output", "error")


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A place between two lines: `which` is `output` or `error`, `offset` a number of bytes."""

    which: str = "output"
    offset: int = 0


class NoSuchPlace(UsageError):
    """No line of the files ends there."""


class _Error(msgspec.Struct):
    code: str


class _Line(msgspec.Struct):
    error: _Error | None


def published_lines(
    store: Store, tenant_id: str, file_ids: Mapping[str, str | None], after: FilePlace
) -> Iterator[tuple[FilePlace, bytes]]:
    """The lines behind a place: answers in the order of the rows, then failures in theirs.

    `file_ids` has an entry for `output` and one for `error`. Rows that were never run are left
    out, as while the batch ran. Raises NoSuchPlace at once, and KeyNotFound.
    """
    if after.offset:
        file_id = file_ids[after.which]
        byte = b""
        if file_id is not None:
            byte = store.get(file_key(tenant_id, file_id), start=after.offset - 1, num_bytes=1)
        if byte != b"\n":
            raise NoSuchPlace(f"No line of the {after.which} file ends at byte {after.offset}.")
    return _lines(store, tenant_id, file_ids, after)


def _lines(
    store: Store, tenant_id: str, file_ids: Mapping[str, str | None], after: FilePlace
) -> Iterator[tuple[FilePlace, bytes]]:
    for which in _ORDER[_ORDER.index(after.which) :]:
        file_id = file_ids[which]
        if file_id is None:
            continue
        offset = after.offset if which == after.which else 0
        with store.open(file_key(tenant_id, file_id), start=offset) as file:
            for line in file:
                offset += len(line)
                if which == "output" or _was_run(line):
                    yield FilePlace(which, offset), line


def _was_run(line: bytes) -> bool:
    error = msgspec.json.decode(line, type=_Line).error
    return error is None or error.code not in NEVER_RUN_CODES
