"""`write_rows`: rows to a file whose name says what it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gristmill.data.csv_rows import write_csv
from gristmill.data.formats import Format, kind_of
from gristmill.data.json_lines import write_json_lines
from gristmill.data.places import name_of, open_to_read, open_to_write


def write_rows(
    path: str | Path,
    rows: Iterable[dict[str, Any]],
    *,
    types: Mapping[str, Any] | None = None,
) -> int:
    """Write every row to a local file or an s3:// object, and return how many there were.

    The formats are those of `read_rows`. The file is there as a whole or not at all; an older one
    is replaced. Columns of Parquet and Arrow have the types of their first rows, or those in
    `types` (`{"score": float}`; columnar.py has the list). Raises UsageError,
    DataInvalid (with row and column) and StoreError.
    """
    kind = kind_of(name_of(path))
    with open_to_write(path, kind.compression) as stream:
        if kind.format is Format.JSONL:
            return write_json_lines(stream, rows)
        if delimiter := kind.format.delimiter:
            return write_csv(stream, rows, delimiter=delimiter)
        from gristmill.data.columnar import write_columnar

        return write_columnar(stream, rows, kind.format, types=types)


def types_of(source: object) -> dict[str, Any]:
    """The types of the columns of a Parquet or Arrow file, for `write_rows`; of others none."""
    if not isinstance(source, str | Path) or str(source) == "-":
        return {}
    kind = kind_of(name_of(source))
    if not kind.format.is_columnar:
        return {}
    from gristmill.data.columnar import column_types

    with open_to_read(source) as stream:
        return column_types(stream, kind.format)
