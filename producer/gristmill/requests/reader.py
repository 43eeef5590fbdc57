"""Splits a byte stream into lines at byte 0A, in memory that no input can grow. Parses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from gristmill.errors import LineError

_CHUNK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One physical line, without its end. `number` counts from 1, `end` is the offset after it.

    `content` has lost a byte-order mark (files that were joined have one in the middle) and
    surrounding blanks; it is empty for a blank line, and None for one that is too long to read.
    """

    number: int
    end: int
    num_bytes: int
    content: bytes | None


def read_lines(source: BinaryIO, *, max_line_bytes: int) -> Iterator[Line]:
    """Every line of `source`, blank ones included; the last one may lack its newline.

    Only byte 0A ends a line: U+2028, U+0085 and a lone CR may stand inside a JSON string.
    """
    number = end = num_bytes = 0
    pieces: list[bytes] = []
    while chunk := source.read(_CHUNK_BYTES):
        head, *rest = chunk.split(b"\n")
        num_bytes += len(head)
        pieces.append(head)
        if num_bytes > max_line_bytes:
            pieces = []  # of a line over the limit only the length is kept
        for tail in rest:
            number, end = number + 1, end + num_bytes + 1
            yield _line(number, end, num_bytes, pieces, max_line_bytes)
            num_bytes, pieces = len(tail), [tail]
    if num_bytes:
        yield _line(number + 1, end + num_bytes, num_bytes, pieces, max_line_bytes)


def _line(number: int, end: int, num_bytes: int, pieces: list[bytes], max_line_bytes: int) -> Line:
    if num_bytes > max_line_bytes:
        return Line(number, end, num_bytes, None)
    content = b"".join(pieces).removeprefix(_BOM).strip(b" \t\r")
    return Line(number, end, num_bytes, content)


def too_long(line: Line, *, max_line_bytes: int) -> LineError:
    return LineError(
        "invalid_json_line",
        f"The line has {line.num_bytes} bytes, at most {max_line_bytes} are read. Shorten it, or "
        "raise GRISTMILL_MAX_LINE_BYTES.",
        line.number,
    )
