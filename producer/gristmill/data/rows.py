"""`read_rows`: the rows of whatever a caller has, one at a time."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

from gristmill.data.csv_rows import read_csv
from gristmill.data.formats import Compression, FileKind, Format, kind_of
from gristmill.data.json_lines import read_json_lines
from gristmill.data.places import name_of, open_to_read
from gristmill.errors import DataInvalid, UsageError

#: A row: from column to value. Columns keep their order.
Row = dict[str, Any]
#: A path, an s3:// URL, `-` (JSON lines from stdin), a DataFrame of pandas or polars, a table of
#: pyarrow, a datasets.Dataset, or anything that yields rows.
Source = str | Path | Iterable[Mapping[str, Any]] | Any

_FRAME_ROWS = 1000


def read_rows(source: Source) -> Iterator[Row]:
    """Every row, in order, in memory that does not grow with their number.

    What a file holds is known by its name: `.jsonl`, `.csv`, `.tsv` (each also with `.gz` or
    `.zst` behind), `.parquet`, `.arrow`. CSV has texts only; the others have their own types.

    Raises UsageError for a source that is no data set, at once; while reading DataInvalid, with
    the line or row that is wrong, and StoreError.
    """
    if isinstance(source, str | Path):
        if str(source) == "-":
            return read_json_lines(sys.stdin.buffer, "stdin")
        return _file_rows(source, kind_of(name_of(source)))
    return _checked(_rows_of_object(source))


def _file_rows(place: str | Path, kind: FileKind) -> Iterator[Row]:
    name = name_of(place)
    with open_to_read(place, kind.compression) as stream:
        try:
            if kind.format is Format.JSONL:
                yield from read_json_lines(stream, name)
            elif delimiter := kind.format.delimiter:
                yield from read_csv(stream, name, delimiter=delimiter)
            else:
                from gristmill.data.columnar import read_columnar

                yield from read_columnar(stream, name, kind.format)
        except (EOFError, OSError, zlib.error) as error:
            raise DataInvalid(_damaged(name, kind, error)) from error
        except Exception as error:
            # The error of backports.zstd has the base class Exception and no more.
            if type(error).__name__ != "ZstdError":
                raise
            raise DataInvalid(_damaged(name, kind, error)) from error


def _damaged(name: str, kind: FileKind, error: Exception) -> str:
    packed = "" if kind.compression is Compression.NONE else f" as {kind.compression.value}"
    return f"{name} cannot be read to its end{packed}: {error}. The file may be cut off or damaged."


def _rows_of_object(source: Any) -> Iterator[Any]:
    module = type(source).__module__.partition(".")[0]
    if module == "pandas" and hasattr(source, "iloc"):
        return _pandas_rows(source)
    if module == "polars" and hasattr(source, "iter_rows"):
        return cast(Iterator[Any], source.iter_rows(named=True))
    if module == "pyarrow":
        return _arrow_rows(source)
    if isinstance(source, Mapping):
        raise UsageError(_of_mapping(source))
    if isinstance(source, str | bytes) or not isinstance(source, Iterable):
        raise UsageError(
            f"A {type(source).__name__} is no data set. Give a path, an s3:// URL, a DataFrame, a "
            "datasets.Dataset, or something that yields dicts."
        )
    return iter(source)


def _of_mapping(source: Mapping[Any, Any]) -> str:
    if type(source).__module__.partition(".")[0] == "datasets":
        splits = list(map(repr, source))
        return (
            f"This data set has the splits {', '.join(splits)}. Give one of them, such as "
            f"data[{splits[0] if splits else ''}]."
        )
    return "A dict is one row, not a data set. Give a list of dicts."


def _pandas_rows(frame: Any) -> Iterator[Any]:
    if not frame.columns.is_unique:
        raise UsageError(f"The DataFrame has columns of the same name: {list(frame.columns)}.")
    for start in range(0, len(frame), _FRAME_ROWS):
        for row in frame.iloc[start : start + _FRAME_ROWS].to_dict("records"):
            # What is missing is NaN, NaT or pandas.NA there, depending on the column's type.
            yield {
                str(column): None if _is_missing(value) else value for column, value in row.items()
            }


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    return type(value).__name__ in ("NAType", "NaTType")


def _arrow_rows(source: Any) -> Iterator[Any]:
    from gristmill.data.columnar import BATCH_ROWS, rows_of

    if hasattr(source, "to_batches"):
        batches = source.to_batches(max_chunksize=BATCH_ROWS)
    elif hasattr(source, "to_pylist"):
        batches = [source]
    else:
        batches = source
    return chain.from_iterable(map(rows_of, batches))


def _checked(rows: Iterator[Any]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if type(row) is dict:
            yield row
        elif isinstance(row, Mapping):
            yield dict(row)
        else:
            raise DataInvalid(
                f"Row {number} is a {type(row).__name__}, and rows are dicts from column to value: "
                f"{str(row)[:80]!r}."
            )
