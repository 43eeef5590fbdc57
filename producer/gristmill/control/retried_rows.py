"""The rows that a batch reads: all of its input file, or those that another batch left unanswered.

Both files are in the order of the rows, so one pass over both finds them, in constant memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

import msgspec

from gristmill.errors import BatchInvalid, LineError
from gristmill.ledger.batch import Batch
from gristmill.requests.reader import read_lines
from gristmill.stores.base import Store
from gristmill.stores.keys import file_key

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER_BYTES = 1 << 18


class _Named(msgspec.Struct):
    custom_id: str


def open_rows(store: Store, batch: Batch) -> BinaryIO:
    """What the batch has to read, the same bytes each time. Raises KeyNotFound.

    Of a batch that runs rows again, reading raises BatchInvalid when one of them is not there.
    """
    source = store.open(file_key(batch.tenant_id, batch.input_file_id or ""))
    if batch.retry_file_id is None:
        return source
    try:
        names = store.open(file_key(batch.tenant_id, batch.retry_file_id))
    except BaseException:
        source.close()
        raise
    # RawIOBase gives what a BinaryIO has, but does not say so.
    return cast(BinaryIO, io.BufferedReader(_Selected(source, names), _BUFFER_BYTES))


class _Selected(io.RawIOBase):
    """The lines of `source` that have the same custom_id as a line of `names`."""

    def __init__(self, source: BinaryIO, names: BinaryIO) -> None:
        self._files = source, names
        self._lines = _selected(source, names)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if not self._left:
            self._left = memoryview(next(self._lines, b""))
        into = memoryview(buffer).cast("B")
        num_bytes = min(len(into), len(self._left))
        into[:num_bytes] = self._left[:num_bytes]
        self._left = self._left[num_bytes:]
        return num_bytes

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()


def _selected(source: BinaryIO, names: BinaryIO) -> Iterator[bytes]:
    wanted = (custom_id for custom_id, _ in _named_lines(names))
    custom_id = next(wanted, None)
    if custom_id is None:
        return
    for known, content in _named_lines(source):
        if known == custom_id:
            yield content + b"\n"
            custom_id = next(wanted, None)
            if custom_id is None:
                return
    raise BatchInvalid(
        [
            LineError(
                "input_modified",
                f"The row {custom_id!r}, which is to run again, is not in the input file.",
                param="input_file_id",
            )
        ],
        1,
    )


def _named_lines(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """(custom_id, line) of each line that has one; lines of any length, since they were read."""
    decode = msgspec.json.Decoder(_Named).decode
    for line in read_lines(file, max_line_bytes=1 << 40):
        if line.content:
            try:
                yield decode(line.content).custom_id, line.content
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
