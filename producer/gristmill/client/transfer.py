"""Uploads that can be sent again, and downloads that go on where they broke off and are checked."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from gristmill.client.calls import fetch
from gristmill.client.errors import APIConnectionError, APIStatusError, DownloadCorrupted
from gristmill.client.retry import delay_s
from gristmill.client.steps import Close, Read, Reply, Request, Sleep, Steps
from gristmill.errors import UsageError

_CHUNK_BYTES = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")

#: Hears of (bytes so far, bytes in all).
OnBytes = Callable[[int, int], None]


class FileForm:
    """A multipart/form-data body of one file and some fields; the file is read as it is sent."""

    def __init__(
        self,
        filename: str,
        open_file: Callable[[], BinaryIO],
        num_file_bytes: int,
        *,
        fields: dict[str, str],
        on_bytes: OnBytes | None = None,
    ) -> None:
        self._open_file = open_file
        self._num_file_bytes = num_file_bytes
        self._on_bytes = on_bytes
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        head = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        )
        safe_name = re.sub(r'[\r\n"\\]', "_", filename)
        head += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; '
            f'filename="{safe_name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        )
        self._head = head.encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()

    @property
    def num_bytes(self) -> int:
        return len(self._head) + self._num_file_bytes + len(self._tail)

    def chunks(self) -> Iterator[bytes]:
        yield self._head
        num_sent = 0
        with self._open_file() as file:
            while chunk := file.read(min(_CHUNK_BYTES, self._num_file_bytes - num_sent)):
                yield chunk
                num_sent += len(chunk)
                if self._on_bytes is not None:
                    self._on_bytes(num_sent, self._num_file_bytes)
        if num_sent != self._num_file_bytes:
            raise UsageError(
                f"The file had {self._num_file_bytes} bytes and now has {num_sent}. "
                "Let nobody write to it while it is uploaded."
            )
        yield self._tail


class Sink(Protocol):
    """Where a download goes."""

    num_bytes: int

    def write(self, piece: bytes) -> None: ...

    def restart(self) -> None:
        """Forget what came so far."""

    def digest(self) -> bytes:
        """SHA-256 of all bytes."""


class MemorySink:
    def __init__(self) -> None:
        self.num_bytes = 0
        self._buffer = io.BytesIO()

    def write(self, piece: bytes) -> None:
        self._buffer.write(piece)
        self.num_bytes += len(piece)

    def restart(self) -> None:
        self._buffer, self.num_bytes = io.BytesIO(), 0

    def digest(self) -> bytes:
        return hashlib.sha256(self._buffer.getbuffer()).digest()

    def value(self) -> bytes:
        return self._buffer.getvalue()


class PartSink:
    """`NAME.FILE_ID.part` beside the wanted file, which it becomes when it is whole.

    A file of the service never changes, so a part that an earlier process left is gone on with.
    """

    def __init__(self, path: Path, file_id: str) -> None:
        if not path.parent.is_dir():
            raise UsageError(
                f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}."
            )
        self._path = path
        self._part = path.with_name(f"{path.name}.{file_id}.part")
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        # Opened without truncating, and read once for its hash.
        self._file = os.fdopen(os.open(self._part, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
        while chunk := self._file.read(_CHUNK_BYTES):
            self._hash.update(chunk)
            self.num_bytes += len(chunk)

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hash.update(piece)
        self.num_bytes += len(piece)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._hash, self.num_bytes = hashlib.sha256(), 0

    def digest(self) -> bytes:
        return self._hash.digest()

    def close(self) -> None:
        """What came is kept, for another try."""
        self._file.close()

    def keep(self) -> None:
        """It is whole and right."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)

    def drop(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


def download(request: Request, sink: Sink, *, on_bytes: OnBytes | None = None) -> Steps[None]:
    """The whole body into the sink, over as many connections as it takes.

    Raises APIError when `max_retries` tries in a row brought nothing, and DownloadCorrupted when
    length or SHA-256 (RFC 9530, `Repr-Digest`) are not what the service says.
    """
    request = request.with_headers(accept_encoding="identity")
    num_failures = 0
    while True:
        reply = yield from _fetch_rest(request, sink.num_bytes)
        num_all = _start(reply, sink, request)
        num_before = sink.num_bytes
        try:
            while piece := (yield Read(reply.stream)):
                sink.write(piece)
                if on_bytes is not None:
                    on_bytes(sink.num_bytes, num_all)
            yield Close(reply.stream)
            return _check(sink, reply, num_all, request)
        except APIConnectionError:
            num_failures = 1 if sink.num_bytes > num_before else num_failures + 1
            if num_failures > request.max_retries:
                raise
        yield Sleep(delay_s(num_failures))


def _fetch_rest(request: Request, num_bytes: int) -> Steps[Reply]:
    """The answer with what is missing."""
    if num_bytes == 0:
        return (yield from fetch(request))
    try:
        return (yield from fetch(request.with_headers(range=f"bytes={num_bytes}-")))
    except APIStatusError as error:
        if error.status_code != 416:
            raise
    # Nothing lies behind these bytes, or they are too many. Only the whole tells the hash.
    return (yield from fetch(request))


def _start(reply: Reply, sink: Sink, request: Request) -> int:
    """Let the sink stand where the body begins. The bytes of the whole, -1 when not known."""
    found = _CONTENT_RANGE.fullmatch(reply.headers.get("content-range", ""))
    if reply.status == 206 and found is not None and int(found[1]) == sink.num_bytes:
        return int(found[3])
    if reply.status == 206:
        raise DownloadCorrupted(
            f"Asked for bytes from {sink.num_bytes} on, {request.url} sent "
            f"{reply.headers.get('content-range')!r}.",
            request=request,
        )
    sink.restart()
    return int(reply.headers.get("content-length", -1))


def _check(sink: Sink, reply: Reply, num_all: int, request: Request) -> None:
    if 0 <= sink.num_bytes < num_all:
        raise APIConnectionError(
            f"{request.url} ended after {sink.num_bytes} of {num_all} bytes.", request=request
        )
    if num_all >= 0 and sink.num_bytes > num_all:
        raise DownloadCorrupted(
            f"{request.url} sent {sink.num_bytes} bytes instead of {num_all}.", request=request
        )
    told = _DIGEST.search(reply.headers.get("repr-digest", ""))
    if told is not None and base64.b64decode(told[1]) != sink.digest():
        raise DownloadCorrupted(
            f"The SHA-256 of what {request.url} sent is not the stored one. "
            "Nothing of it is kept; download it again.",
            request=request,
        )
