"""What a file holds, by its name: the format of its rows and how it is compressed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gristmill.errors import UsageError


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    ARROW = "arrow"


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
_TEXTS = (Format.JSONL, Format.CSV, Format.TSV)


@dataclass(frozen=True, slots=True)
class FileKind:
    format: Format
    compression: Compression


def stem_of(name: str) -> str:
    """The name without the end that says what the file holds."""
    for suffixes in (_COMPRESSIONS, _FORMATS):
        for suffix in suffixes:
            if name.lower().endswith(suffix):
                name = name[: -len(suffix)]
                break
    return name


def kind_of(name: str) -> FileKind:
    """The kind of a file by the end of its name. Raises UsageError for one that is not known."""
    rest = name.lower()
    compression = Compression.NONE
    for suffix, packed in _COMPRESSIONS.items():
        if rest.endswith(suffix):
            rest, compression = rest.removesuffix(suffix), packed
            break
    for suffix, format_ in _FORMATS.items():
        if rest.endswith(suffix):
            if compression is not Compression.NONE and format_ not in _TEXTS:
                raise UsageError(
                    f"{name!r}: {format_.value} files are compressed inside, not as a whole. "
                    f"Unpack the file, and name it *{suffix}."
                )
            return FileKind(format_, compression)
    raise UsageError(
        f"{name!r}: the end of a name says what a file holds, and this one is not known. Known: "
        f"{', '.join(_FORMATS)}; the texts among them also with .gz or .zst behind."
    )
