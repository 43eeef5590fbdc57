"""Rows in JSON lines, one object a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from gristmill.errors import DataInvalid

#: Longest line that is read, in bytes, so that a file without line feeds cannot fill the memory.
MAX_LINE_BYTES = 64 * 2**20
_BOM = b"\xef\xbb\xbf"


def read_json_lines(stream: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    """Blank lines do not count. Raises DataInvalid with the line's number, from 1."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    line_no = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        line_no += 1
        if len(line) > MAX_LINE_BYTES:
            raise DataInvalid(f"{name}, line {line_no}: longer than {MAX_LINE_BYTES} bytes.")
        if line_no == 1:
            line = line.removeprefix(_BOM)
        if not line.strip():
            continue
        try:
            row = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataInvalid(_problem(name, line_no, line, error)) from error
        yield row


def _problem(name: str, line_no: int, line: bytes, error: Exception) -> str:
    shown = line[:60].decode("utf-8", "replace").strip()
    problem = f"{name}, line {line_no}: not one JSON object ({error}), but {shown!r}."
    if line.lstrip().startswith(b"["):
        problem += " Write one object a line, without brackets and commas around them."
    return problem


def write_json_lines(stream: BinaryIO, rows: Iterable[dict[str, Any]]) -> int:
    """Returns how many rows there were. A number that is not finite is written as null."""
    encoder = msgspec.json.Encoder(enc_hook=plain)
    buffer = bytearray()
    num_rows = 0
    for num_rows, row in enumerate(rows, 1):
        try:
            encoder.encode_into(row, buffer)
        except (TypeError, ValueError, UnicodeEncodeError) as error:
            raise DataInvalid(f"Row {num_rows} cannot be written as JSON: {error}.") from error
        buffer += b"\n"
        stream.write(buffer)
    return num_rows


def plain(value: object) -> Any:
    """A value of numpy or pandas as Python's own; raises TypeError for what has none."""
    for method in ("tolist", "isoformat", "item"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    raise TypeError(f"values of type {type(value).__name__} are not known")
