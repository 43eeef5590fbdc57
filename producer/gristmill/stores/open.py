"""From a URL to a Store. What a Store needs beyond the light installation is imported only here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gristmill.errors import UsageError
from gristmill.stores.base import Store, check_key
from gristmill.stores.local import LocalStore

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from gristmill.stores.s3 import S3Store

_KNOWN = "a folder, file:///folder, or s3://bucket/prefix?endpoint=…&region=…"

#: Parameters of an s3:// URL beyond those of every AWS URL, and their values.
_S3_CHOICES = {
    # boto3's own words. Not stated: when_supported on AWS, when_required elsewhere, because older
    # servers refuse the checksums that boto3 sends, or store them inside the object.
    "checksums": ("when_supported", "when_required"),
    # Not stated: virtual on AWS, path elsewhere (bucket.localhost leads nowhere).
    "addressing": ("virtual", "path"),
}


def open_store(url: str) -> Store:
    """A local path, `file://…` or `s3://bucket/prefix?endpoint=…&region=…`.

    Nothing is read or written yet: `probe()` does. Raises UsageError.
    """
    if url.startswith("s3://"):
        return _open_s3(url)
    if url.startswith("file://"):
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise UsageError(f"{url!r} names no folder here. Write file:///folder.")
        return LocalStore(Path(unquote(parts.path)))
    if "://" in url or not url:
        raise UsageError(f"{url!r} is no store. Known: {_KNOWN}.")
    return LocalStore(Path(url).expanduser())


def _open_s3(url: str) -> S3Store:
    opened = s3_bucket(url)
    if opened.path:
        check_key(opened.path)
    from gristmill.stores.s3 import S3Store

    return S3Store(opened.client, opened.name, opened.path, send_md5=opened.send_md5)


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket and the client that reaches it; `path` is what the URL names in it."""

    client: S3Client
    name: str
    path: str
    #: Whether the server may not know newer checksums.
    send_md5: bool


def s3_bucket(url: str) -> S3Bucket:
    """`s3://bucket/path?endpoint=…&region=…`. Raises UsageError; nothing is sent yet."""
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        from gristmill.aws import aws_session, client_config, is_aws, parse_aws_url
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{url!r} needs the package {error.name}: pip install 'gristmill[aws]'."
        ) from error
    where = parse_aws_url(url, choices=_S3_CHOICES, attempts=6, timeout_s=30.0)
    if not where.name:
        raise UsageError(f"{url!r} names no bucket. Write s3://bucket or s3://bucket/prefix.")
    try:
        session = aws_session()
        base = client_config(where, session)
        address = session.client("s3", endpoint_url=where.endpoint, config=base).meta.endpoint_url
        elsewhere = not is_aws(address)
        style = where.extra.get("addressing") or ("path" if elsewhere else "virtual")
        options: dict[str, Any] = {
            "signature_version": "s3v4",
            "s3": {"addressing_style": style},
        }
        checksums = where.extra.get("checksums") or ("when_required" if elsewhere else None)
        if checksums is not None:
            options["request_checksum_calculation"] = checksums
            options["response_checksum_validation"] = checksums
        client = session.client(
            "s3", endpoint_url=where.endpoint, config=base.merge(Config(**options))
        )
    except (BotoCoreError, ValueError) as error:
        raise UsageError(f"{url!r}: {error}") from error
    return S3Bucket(client, where.name, where.path, checksums == "when_required")
