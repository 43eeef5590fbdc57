"""Sends the bytes of a stored file: exact length, one Range, flat memory."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from gristmill.api.failures import ApiError
from gristmill.errors import StoreError

_CHUNK_BYTES = 1 << 18
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def content_response(
    file: BinaryIO,
    *,
    start: int,
    num_bytes: int,
    whole_bytes: int,
    etag: str,
    sha256: str | None,
) -> Response:
    """`num_bytes` of `file`, which stands at byte `start` of an object of `whole_bytes`.

    `sha256`, in hex, is that of the whole, and is told as RFC 9530 has it.
    """
    headers = {
        "accept-ranges": "bytes",
        "content-length": str(num_bytes),
        "etag": etag,
        "content-disposition": "attachment",
        "x-content-type-options": "nosniff",
    }
    if sha256 is not None:
        headers["repr-digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"
    status = 200
    if num_bytes != whole_bytes:
        status = 206
        headers["content-range"] = f"bytes {start}-{start + num_bytes - 1}/{whole_bytes}"
    return StreamingResponse(
        _chunks(file, num_bytes), status, headers, media_type="application/octet-stream"
    )


def read_range(value: str | None, num_bytes: int) -> tuple[int, int]:
    """(first byte, how many) of a Range header. What is no single range means the whole.

    Raises ApiError (416) for a range that lies behind the end.
    """
    match = _RANGE.fullmatch(value.strip()) if value else None
    if match is None or not (match[1] or match[2]):
        return 0, num_bytes
    first, last = match[1], match[2]
    if not first:
        start, end = max(num_bytes - int(last), 0), num_bytes
    else:
        start = int(first)
        end = min(int(last) + 1, num_bytes) if last else num_bytes
        if last and int(last) < start:
            return 0, num_bytes  # no range, says RFC 9110
    if start >= end:
        raise ApiError(
            416,
            f"The file has {num_bytes} bytes, and {value!a} lies behind them.",
            code="invalid_range",
            headers={"content-range": f"bytes */{num_bytes}"},
        )
    return start, end - start


def _chunks(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    with file:
        while num_bytes:
            chunk = file.read(min(_CHUNK_BYTES, num_bytes))
            if not chunk:
                # The connection breaks, so that nobody takes what came for the whole.
                raise StoreError("The stored file is shorter than the ledger says.")
            num_bytes -= len(chunk)
            yield chunk
