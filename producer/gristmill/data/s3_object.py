"""One object of S3 as a file, under any key: a data set's place is the caller's, not a Store's."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from botocore.exceptions import BotoCoreError, ClientError

from gristmill.aws import AWS_ERRORS, explain, is_aws
from gristmill.errors import DataInvalid, StoreError, StoreRefused, UsageError
from gristmill.stores.open import s3_bucket
from gristmill.stores.s3_reader import ObjectReader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER_BYTES = 256 * 1024
_NOT_THERE = ("NoSuchKey", "404", "NotFound")


class S3Object:
    """`s3://bucket/any key?endpoint=…&region=…`. Raises UsageError; nothing is sent yet."""

    def __init__(self, url: str) -> None:
        self._bucket = s3_bucket(url)
        if not self._bucket.path:
            raise UsageError(f"{url!r} names no object. Write s3://bucket/folder/file.parquet.")

    def open(self) -> BinaryIO:
        """A stream that can seek. Raises DataInvalid when there is no object, StoreError."""
        try:
            head = self._bucket.client.head_object(Bucket=self._bucket.name, Key=self._bucket.path)
        except AWS_ERRORS as error:
            raise self._explain(error, doing="looking up", key=self._bucket.path) from error
        raw = _SeekableReader(self, head["ContentLength"])
        return cast(BinaryIO, io.BufferedReader(raw, _BUFFER_BYTES))

    def write(self, stream: IO[bytes]) -> None:
        """Send all bytes of a stream; the object is there as a whole or not at all."""
        try:
            self._bucket.client.upload_fileobj(stream, self._bucket.name, self._bucket.path)
        except AWS_ERRORS as error:
            raise self._explain(error, doing="writing", key=self._bucket.path) from error
        except Exception as error:
            # s3transfer wraps what botocore raised in an error of its own, which has no base class.
            cause = error.__cause__ or error.__context__
            if not isinstance(cause, AWS_ERRORS):
                raise
            raise self._explain(cause, doing="writing", key=self._bucket.path) from error

    def reader(self, start: int) -> ObjectReader:
        return ObjectReader(
            self._bucket.client,
            self._bucket.name,
            self._bucket.path,
            key=self._bucket.path,
            start=start,
            num_bytes=None,
            explain=self._explain,
        )

    def _explain(self, error: BotoCoreError | ClientError, *, doing: str, key: str) -> StoreError:
        endpoint = self._bucket.client.meta.endpoint_url
        where = f"s3://{self._bucket.name}" + ("" if is_aws(endpoint) else f" at {endpoint}")
        trouble = explain(error, where=where, doing=f"{doing} {key!r}")
        if trouble.code in _NOT_THERE:
            raise DataInvalid(f"There is no object {key!r} in {where}.") from error
        return (StoreError if trouble.retryable else StoreRefused)(trouble.message)


class _SeekableReader(io.RawIOBase):
    """Asks the server again where the caller jumps; what follows itself is one request."""

    def __init__(self, source: S3Object, num_bytes: int) -> None:
        super().__init__()
        self._source = source
        self._num_bytes = num_bytes
        self._position = 0
        self._reader: ObjectReader | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        if base + offset != self._position:
            self._drop()
            self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if self._position >= self._num_bytes:
            return 0
        if self._reader is None:
            self._reader = self._source.reader(self._position)
        num_bytes = self._reader.readinto(buffer)
        self._position += num_bytes
        return num_bytes

    def close(self) -> None:
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
