"""A Store in a bucket of S3, or of a server that speaks its protocol.

Requests are retried by botocore, a bounded number of times; what remains is raised as StoreError.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO, cast

from botocore.exceptions import BotoCoreError, ClientError

from gristmill.aws import AWS_ERRORS, explain, is_aws
from gristmill.errors import KeyNotFound, StoreError, StoreRefused
from gristmill.stores.base import MAX_LINK_S, check_key, check_prefix, check_range, is_key
from gristmill.stores.s3_reader import ObjectReader

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        PutObjectRequestTypeDef,
        UploadPartRequestTypeDef,
    )

#: Larger objects go up in parts of this size, one after the other. All parts of an object but the
#: last are equal, which some servers ask for; S3 wants 5 MiB at least.
PART_BYTES = 8 * 2**20
#: Most parts of one object (S3's own limit): 78 GiB.
MAX_PARTS = 10_000
_MAX_CONFLICTS = 5
_BUFFER_BYTES = 256 * 1024
_NOT_THERE = ("NoSuchKey", "404", "NotFound")
_TAKEN = ("PreconditionFailed", "412")
_CONFLICT = ("ConditionalRequestConflict", "409")
_CHECKSUM = ("XAmzContentSHA256Mismatch", "NotImplemented", "InvalidTrailer", "MalformedTrailer")


class S3Store:
    """Objects lie under `prefix` of a bucket; nothing outside it is touched."""

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        prefix: str = "",
        *,
        send_md5: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`send_md5` is for servers that do not know the newer checksums: all know this one.

        `clock` is compared with the times at which the server says that uploads began.
        """
        self._client = client
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._clock = clock
        self._send_md5 = send_md5
        self._knows_conditions = True

    def put(self, key: str, body: bytes) -> None:
        check_key(key)
        with self._explained("writing", key):
            self._put_object(key, body)

    def put_stream(self, key: str, chunks: Iterable[bytes]) -> int:
        check_key(key)
        parts = _parts(chunks)
        first = next(parts)
        if len(first) < PART_BYTES:
            self.put(key, first)
            return len(first)
        return self.put_parts(key, first, parts)

    def create(self, key: str, body: bytes) -> bool:
        check_key(key)
        if not self._knows_conditions:
            with suppress(KeyNotFound):
                return self.get(key) == body
            self.put(key, body)
            return True
        with self._explained("creating", key):
            for tries_left in reversed(range(_MAX_CONFLICTS)):
                try:
                    self._put_object(key, body, only_new=True)
                    return True
                except ClientError as error:
                    if _code(error) in _TAKEN:
                        # A repeated request may have met its own first copy: the bytes decide.
                        return self.get(key) == body
                    if _code(error) not in _CONFLICT or not tries_left:
                        raise
        raise AssertionError("the loop above returns or raises")

    def get(self, key: str, *, start: int = 0, num_bytes: int | None = None) -> bytes:
        check_range(start, num_bytes)
        if num_bytes == 0:
            self.size(key)
            return b""
        with self._reader(key, start, num_bytes) as reader:
            return reader.readall()

    def open(self, key: str, *, start: int = 0) -> BinaryIO:
        check_range(start, None)
        return cast(BinaryIO, io.BufferedReader(self._reader(key, start, None), _BUFFER_BYTES))

    def size(self, key: str) -> int:
        check_key(key)
        with self._explained("looking up", key):
            reply = self._client.head_object(Bucket=self._bucket, Key=self._path(key))
        return reply["ContentLength"]

    def link(self, key: str, expires_s: int) -> str | None:
        check_key(key)
        if not 1 <= expires_s <= MAX_LINK_S:
            raise StoreRefused(f"A link lasts from 1 to {MAX_LINK_S} seconds, not {expires_s}.")
        with self._explained("signing a link to", key):
            return self._client.generate_presigned_url(
                "get_object",
                Params={"Bucket": self._bucket, "Key": self._path(key)},
                ExpiresIn=expires_s,
            )

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._listed(prefix)

    def delete(self, key: str) -> None:
        check_key(key)
        with self._explained("removing", key), suppress(KeyNotFound):
            self._client.delete_object(Bucket=self._bucket, Key=self._path(key))

    def remove_unfinished(self, older_than_s: float) -> int:
        """An upload that is being aborted may still take in a part: the next call finds it."""
        oldest = self._clock() - timedelta(seconds=older_than_s)
        pages = self._client.get_paginator("list_multipart_uploads")
        num_removed = 0
        with self._explained("looking for unfinished uploads under", ""):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._root):
                for upload in page.get("Uploads", ()):
                    if upload["Initiated"] <= oldest:
                        self._abort(upload["Key"], upload["UploadId"])
                        num_removed += 1
        return num_removed

    def probe(self) -> None:
        from gristmill.stores.s3_probe import probe

        self._knows_conditions = probe(self, self._client, self._bucket, self._root)

    def put_parts(self, key: str, first: bytes, rest: Iterator[bytes]) -> int:
        """Send parts as they come; whatever goes wrong, no part of them stays."""
        path = self._path(key)
        with self._explained("beginning an upload of", key):
            begun = self._client.create_multipart_upload(Bucket=self._bucket, Key=path)
        upload_id = begun["UploadId"]
        try:
            sent = [self._upload_part(key, upload_id, 1, first)]
            num_bytes = len(first)
            del first
            for part in rest:
                sent.append(self._upload_part(key, upload_id, len(sent) + 1, part))
                num_bytes += len(part)
            self._complete(key, upload_id, sent, num_bytes)
        except BaseException:
            with suppress(*AWS_ERRORS):  # what cannot be aborted now, remove_unfinished finds
                self._abort(path, upload_id)
            raise
        return num_bytes

    # The requests of a write

    def _put_object(self, key: str, body: bytes, *, only_new: bool = False) -> None:
        request: PutObjectRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self._path(key),
            "Body": body,
        }
        if only_new:
            request["IfNoneMatch"] = "*"
        if self._send_md5:
            request["ContentMD5"] = _md5(body)
        self._client.put_object(**request)

    def _upload_part(
        self, key: str, upload_id: str, number: int, part: bytes
    ) -> CompletedPartTypeDef:
        if number > MAX_PARTS:
            raise StoreRefused(
                f"{key}: an object holds {MAX_PARTS * PART_BYTES // 2**30} GiB at most. "
                "Cut the batch into smaller ones."
            )
        request: UploadPartRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self._path(key),
            "UploadId": upload_id,
            "PartNumber": number,
            "Body": part,
        }
        if self._send_md5:
            request["ContentMD5"] = _md5(part)
        with self._explained(f"sending part {number} of", key):
            reply = self._client.upload_part(**request)
        return {"ETag": reply["ETag"], "PartNumber": number}

    def _complete(
        self, key: str, upload_id: str, sent: Sequence[CompletedPartTypeDef], num_bytes: int
    ) -> None:
        with self._explained("completing the upload of", key):
            try:
                self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=self._path(key),
                    UploadId=upload_id,
                    MultipartUpload={"Parts": sent},
                    MpuObjectSize=num_bytes,
                )
            except ClientError as error:
                # When the reply was lost, the repeated request finds no upload but the object.
                if _code(error) != "NoSuchUpload" or self.size(key) != num_bytes:
                    raise

    def _abort(self, path: str, upload_id: str) -> None:
        with suppress(self._client.exceptions.NoSuchUpload):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=path, UploadId=upload_id)

    # Keys, reading and errors

    def _path(self, key: str) -> str:
        return self._root + key

    def _reader(self, key: str, start: int, num_bytes: int | None) -> ObjectReader:
        check_key(key)
        return ObjectReader(
            self._client,
            self._bucket,
            self._path(key),
            key=key,
            start=start,
            num_bytes=num_bytes,
            explain=self._explain,
        )

    def _listed(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        with self._explained("listing", prefix):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._path(prefix)):
                for entry in page.get("Contents", ()):
                    key = entry["Key"][len(self._root) :]
                    if is_key(key):
                        yield key

    @contextmanager
    def _explained(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except AWS_ERRORS as error:
            raise self._explain(error, doing=doing, key=key) from error

    def _explain(self, error: BotoCoreError | ClientError, *, doing: str, key: str) -> StoreError:
        endpoint = self._client.meta.endpoint_url
        where = f"s3://{self._bucket}/{self._root}" + (
            "" if is_aws(endpoint) else f" at {endpoint}"
        )
        if isinstance(error, ClientError) and _code(error) in _NOT_THERE:
            return KeyNotFound(f"There is no object {key!r} in {where}.")
        trouble = explain(error, where=where, doing=f"{doing} {key!r}")
        message = trouble.message
        if trouble.code == "NoSuchBucket":
            message += f" Create the bucket {self._bucket!r}, or put its name right in the URL."
        elif trouble.code in _CHECKSUM or "checksum" in message.lower() or "chunked" in message:
            message += " If the server does not know checksums, add checksums=when_required."
        return (StoreError if trouble.retryable else StoreRefused)(message)


def _code(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Code", "")


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of PART_BYTES, the last one shorter; one piece at least."""
    part = bytearray()
    num_parts = 0
    for chunk in chunks:
        view = memoryview(chunk)
        while len(view):
            room = PART_BYTES - len(part)
            part += view[:room]
            view = view[room:]
            if len(part) == PART_BYTES:
                yield bytes(part)
                num_parts += 1
                part.clear()
    if part or not num_parts:
        yield bytes(part)
