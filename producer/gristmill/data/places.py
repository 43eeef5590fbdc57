"""Opens local files and s3:// objects as streams of bytes, and writes them whole or not at all.

The parameters of an s3:// URL are those of a store (`?endpoint=…&region=…`); credentials come from
the usual AWS chain.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from gristmill.data.formats import Compression
from gristmill.errors import DataInvalid, StoreError, UsageError

if TYPE_CHECKING:
    from gristmill.data.s3_object import S3Object

_S3 = "s3://"


def name_of(place: str | Path) -> str:
    """The file's name, by which its kind is known: without the parameters of a URL."""
    text = str(place)
    return text.partition("?")[0] if text.startswith(_S3) else text


def open_to_read(place: str | Path, compression: Compression = Compression.NONE) -> BinaryIO:
    """A stream from the first byte; it can seek where nothing is compressed.

    Raises UsageError, DataInvalid for a file that is not there, StoreError.
    """
    raw = _s3_object(str(place)).open() if str(place).startswith(_S3) else _open_local(place)
    if compression is Compression.GZIP:
        import gzip

        return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]
    if compression is Compression.ZSTD:
        return _zstd_file(raw, "rb")
    return raw


@contextmanager
def open_to_write(
    place: str | Path, compression: Compression = Compression.NONE
) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file when the block ends without an error, all at once.

    An object of S3 goes up from a temporary file of this machine. Raises UsageError, StoreError.
    """
    if str(place).startswith(_S3):
        target = _s3_object(str(place))
        with tempfile.TemporaryFile(prefix="gristmill-") as spool:
            with _packed(spool, compression) as stream:
                yield stream
            spool.seek(0)
            target.write(spool)
        return
    path = Path(place).expanduser()
    if not path.parent.is_dir():
        raise UsageError(
            f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}. "
            "Create it, or name another place."
        )
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temp.open("xb") as file:
            with _packed(file, compression) as stream:
                yield stream
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    except OSError as error:
        if error.filename not in (None, str(temp), str(path)):
            raise  # another file's trouble, of the code inside the block
        raise StoreError(f"{path} could not be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temp.unlink(missing_ok=True)


@contextmanager
def _packed(raw: IO[bytes], compression: Compression) -> Iterator[BinaryIO]:
    if compression is Compression.GZIP:
        import gzip

        # Without a time inside, the same rows are the same bytes.
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
            yield packed  # type: ignore[misc]
    elif compression is Compression.ZSTD:
        with _zstd_file(raw, "wb") as packed:
            yield packed
    else:
        yield raw  # type: ignore[misc]


def _open_local(place: str | Path) -> BinaryIO:
    path = Path(place).expanduser()
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise DataInvalid(f"There is no file {str(path)!r}.") from error
    except OSError as error:
        raise DataInvalid(f"{str(path)!r} cannot be read: {error.strerror}.") from error


def _s3_object(url: str) -> S3Object:
    from gristmill.data.s3_object import S3Object

    return S3Object(url)


def _zstd_file(raw: IO[bytes], mode: str) -> BinaryIO:
    try:
        from compression.zstd import ZstdFile  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        try:
            from backports.zstd import ZstdFile
        except ModuleNotFoundError as error:
            raise needs("backports.zstd", "A file packed with zstd") from error
    return ZstdFile(raw, mode)  # type: ignore[no-any-return, unused-ignore]


def needs(package: str, what: str) -> UsageError:
    """What is said where a package of the extra is not installed."""
    return UsageError(f"{what} needs the package {package}: pip install 'gristmill[data]'.")
