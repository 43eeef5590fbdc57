"""What a file holds, by its name: the format of its rows and how it is compressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from gristmill.errors import UsageError

T = TypeVar("T")


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    ARROW = "arrow"

    @property
    def delimiter(self) -> str | None:
        """What stands between the values of a line, in CSV and TSV."""
        return {Format.CSV: ",", Format.TSV: "\t"}.get(self)

    @property
    def is_columnar(self) -> bool:
        """Whether its columns have types. Needs pyarrow."""
        return self in (Format.PARQUET, Format.ARROW)


class Compression(StrEnum):
    """How the bytes of the whole file are packed; Parquet and Arrow pack their own."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_FORMATS = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".tab": Format.TSV,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
    ".arrows": Format.ARROW,
}
_COMPRESSIONS = {
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
}


@dataclass(frozen=True, slots=True)
class FileKind:
    format: Format
    compression: Compression


def stem_of(name: str) -> str:
    """The name without the end that says what the file holds."""
    return _without(_without(name, _COMPRESSIONS)[0], _FORMATS)[0]


def kind_of(name: str) -> FileKind:
    """The kind of a file by the end of its name. Raises UsageError for one that is not known."""
    rest, compression = _without(name, _COMPRESSIONS)
    stem, format_ = _without(rest, _FORMATS)
    if format_ is None:
        raise UsageError(
            f"{name!r}: the end of a name says what a file holds, and this one is not known. "
            f"Known: {', '.join(_FORMATS)}; the texts among them also with .gz or .zst behind."
        )
    if compression is not None and format_.is_columnar:
        raise UsageError(
            f"{name!r}: {format_.value} files are compressed inside, not as a whole. "
            f"Unpack the file, and name it *{rest[len(stem) :]}."
        )
    return FileKind(format_, compression or Compression.NONE)


def _without(name: str, suffixes: Mapping[str, T]) -> tuple[str, T | None]:
    """The name without the suffix that it ends in, and what that one says."""
    for suffix, found in suffixes.items():
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], found
    return name, None
