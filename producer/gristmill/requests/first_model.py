"""Which model a file of requests is for: what its first line says, before anything is checked."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from gristmill.requests.reader import read_lines


class _Body(msgspec.Struct):
    model: str = ""


class _Line(msgspec.Struct):
    body: _Body


def first_model_name(source: BinaryIO, *, max_bytes: int) -> str:
    """`model` of the first line that is not blank; empty where it cannot be read."""
    for line in read_lines(source, max_line_bytes=max_bytes):
        if line.content == b"":
            continue
        try:
            return msgspec.json.decode(line.content or b"", type=_Line).body.model
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return ""
    return ""
