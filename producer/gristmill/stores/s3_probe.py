"""Finds out at start-up whether a bucket keeps its promises, before any work is lost to it."""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from gristmill.errors import StoreError, StoreRefused

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from gristmill.stores.s3 import S3Store

log = logging.getLogger(__name__)

_MULTIPART = "probe-parts-"
_SINGLE = "probe-"


def probe(store: S3Store, client: S3Client, bucket: str, root: str) -> bool:
    """Whether the server has conditional writes. Raises StoreError."""
    mark = secrets.token_hex(8)
    body = mark.encode() * 64
    single, parts = f"{_SINGLE}{mark}", f"{_MULTIPART}{mark}"
    try:
        store.put(single, body)
        _read_back(store, single, body)
        store.put_parts(parts, body, iter(()))
        _read_back(store, parts, body)
        if single not in store.list(_SINGLE):
            raise StoreRefused(f"{single!r} was written and read back, but is not listed.")
        knows_conditions = _knows_conditions(client, bucket, root + single, body)
    except StoreError:
        for key in (single, parts):
            with suppress(StoreError):  # the first error says what is wrong
                store.delete(key)
        raise
    store.delete(single)
    store.delete(parts)
    return knows_conditions


def _read_back(store: S3Store, key: str, body: bytes) -> None:
    found = store.get(key)
    if found != body:
        raise StoreRefused(
            f"The store gave back {len(found)} other bytes for the {len(body)} written to {key!r}. "
            "Servers that do not know checksums store them inside the object: "
            "add checksums=when_required to the URL."
        )
    middle = len(body) // 2
    if store.get(key, start=middle, num_bytes=5) != body[middle : middle + 5]:
        raise StoreRefused(f"The store does not read ranges: {key!r} from byte {middle} on.")


def _knows_conditions(client: S3Client, bucket: str, path: str, body: bytes) -> bool:
    try:
        client.put_object(Bucket=bucket, Key=path, Body=body, IfNoneMatch="*")
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in ("PreconditionFailed", "412"):
            return True
    log.warning("store ignores conditional writes bucket=%s: create() is not atomic", bucket)
    return False
