"""Reads one object of S3 piece by piece, and goes on where a connection broke."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Protocol

from botocore.exceptions import BotoCoreError, ClientError
from botocore.response import StreamingBody
from urllib3.exceptions import HTTPError

from gristmill.errors import StoreError, StoreRefused

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

#: How often a body may break without one byte of progress before the reader gives up.
MAX_BREAKS = 5
_PIECE_BYTES = 1024 * 1024


class _Explain(Protocol):
    """Turns an error of botocore into one of ours."""

    def __call__(
        self, error: BotoCoreError | ClientError, *, doing: str, key: str
    ) -> StoreError: ...


class ObjectReader(io.RawIOBase):
    """Gives all bytes from `start` on, or raises StoreError: an object never ends early in silence.

    The constructor asks for the object, so that it raises KeyNotFound.
    """

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        path: str,
        *,
        key: str,
        start: int,
        num_bytes: int | None,
        explain: _Explain,
    ) -> None:
        """`path` is the object's name in the bucket, `key` what errors call it."""
        super().__init__()
        self._client = client
        self._bucket = bucket
        self._path = path
        self._key = key
        self._explain = explain
        self._last = "" if num_bytes is None else str(start + num_bytes - 1)
        self._position = start
        self._size = 0
        self._etag: str | None = None
        self._num_breaks = 0
        self._body: StreamingBody | None = None
        self._request()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while self._body is not None and len(view):
            try:
                num_bytes = self._body.readinto(view)  # type: ignore[arg-type]
            except (BotoCoreError, HTTPError, OSError) as error:
                self._recover(error)
                continue
            if num_bytes:
                self._position += num_bytes
                self._num_breaks = 0
                return num_bytes
            if self._position >= self._size:
                break  # an empty read at the end is where botocore compares the checksum
            self._recover(None)
        return 0

    def readall(self) -> bytes:
        pieces = []
        while piece := self.read(_PIECE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
        super().close()

    def _request(self) -> None:
        """Ask for all bytes from the position on, of the very object that was begun."""
        wanted = {} if self._etag is None else {"IfMatch": self._etag}
        if self._position or self._last:
            wanted["Range"] = f"bytes={self._position}-{self._last}"
        try:
            reply = self._client.get_object(
                Bucket=self._bucket,
                Key=self._path,
                **wanted,  # type: ignore[arg-type]
            )
        except ClientError as error:
            if error.response["Error"]["Code"] in ("InvalidRange", "416"):
                return  # it begins beyond the end: nothing to read
            raise self._explain(error, doing="reading", key=self._key) from error
        except BotoCoreError as error:
            raise self._explain(error, doing="reading", key=self._key) from error
        self._accept(reply, wanted_range="Range" in wanted)

    def _accept(self, reply: GetObjectOutputTypeDef, *, wanted_range: bool) -> None:
        if wanted_range and not reply.get("ContentRange", "").startswith(
            f"bytes {self._position}-"
        ):
            reply["Body"].close()
            raise StoreRefused(
                f"{self._key}: the server was asked for the bytes from {self._position} on "
                f"and sent {reply.get('ContentRange') or 'all of them'}. Gristmill needs a store "
                "that knows ranges."
            )
        self._body = reply["Body"]
        self._size = self._position + reply["ContentLength"]
        self._etag = reply.get("ETag")

    def _recover(self, error: Exception | None) -> None:
        """Ask again after a break; raises StoreError when that helped too often in vain."""
        self._num_breaks += 1
        if self._body is not None:
            self._body.close()
            self._body = None
        if self._num_breaks > MAX_BREAKS or self._position >= self._size:
            reason = f"{type(error).__name__}: {error}" if error else "the body ended early"
            raise StoreError(
                f"{self._key}: reading stopped at byte {self._position} of {self._size} "
                f"({reason}). Nothing is lost; it may work later."
            ) from error
        self._request()
