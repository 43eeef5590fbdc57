"""Rows in CSV and TSV: the first line names the columns, and each value is the text that is there.

Read as spreadsheets write them: quotes around values with commas and line breaks, a quote in them
doubled, UTF-8 with or without a byte-order mark.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from gristmill.data.json_lines import plain
from gristmill.data.template import names
from gristmill.errors import DataInvalid

#: Longest value that is read, in characters.
MAX_VALUE_CHARS = 16 * 2**20


def read_csv(stream: BinaryIO, name: str, *, delimiter: str) -> Iterator[dict[str, str]]:
    """Raises DataInvalid with the line's number, from 1; of a row with line breaks the last."""
    # The limit belongs to the whole process; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_VALUE_CHARS))
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    lines = csv.reader(text, delimiter=delimiter, strict=True)
    columns: list[str] = []
    try:
        for values in lines:
            if not values:
                continue
            if not columns:
                columns = _header(values, name)
            elif len(values) == len(columns):
                yield dict(zip(columns, values, strict=True))
            else:
                raise DataInvalid(
                    f"{name}, line {lines.line_num}: {len(values)} values, and there are "
                    f"{len(columns)} columns ({names(columns)}). Put quotes around values that "
                    f"hold {_NAMES[delimiter]} or line breaks."
                )
    except csv.Error as error:
        raise DataInvalid(f"{name}, line {lines.line_num}: {error}.") from error
    except UnicodeDecodeError as error:
        raise DataInvalid(
            f"{name}, about line {lines.line_num + 1}: not UTF-8 ({error.reason}). Save the file "
            "as UTF-8."
        ) from error


_NAMES = {",": "commas", "\t": "tabs"}


def _header(values: Sequence[str], name: str) -> list[str]:
    columns = [value.strip() for value in values]
    doubled = sorted({column for column in columns if columns.count(column) > 1})
    if doubled or "" in columns:
        what = f"{names(doubled)} more than once" if doubled else "a column without a name"
        raise DataInvalid(f"{name}: the first line names the columns, and it has {what}.")
    return columns


def write_csv(
    stream: BinaryIO,
    rows: Iterable[dict[str, Any]],
    *,
    delimiter: str,
    columns: Sequence[str] | None = None,
) -> int:
    """Returns how many rows there were. The first row names the columns if `columns` does not.

    Nothing (null) is an empty value; lists and objects are written as JSON. Texts stay what they
    are: one that begins with =, +, - or @ is a formula to a spreadsheet that opens the file.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(_LineFeeds(text), delimiter=delimiter, lineterminator="\r\n")
    num_rows = 0
    if columns is not None:
        writer.writerow(columns)
    for num_rows, row in enumerate(rows, 1):
        if columns is None:
            columns = list(row)
            writer.writerow(columns)
        if unknown := row.keys() - set(columns):
            raise DataInvalid(
                f"Row {num_rows} has {names(sorted(unknown))}, and the columns were named before: "
                f"{names(columns)}. Give every row the same columns, or write JSON lines."
            )
        writer.writerow([_cell(row.get(column)) for column in columns])
    text.flush()
    text.detach()
    return num_rows


class _LineFeeds:
    """Ends lines with \\n alone.

    Before Python 3.13 a writer puts quotes around those line breaks only that are in its own line
    end, so that is \\r\\n: a lone \\r in a text would end its row.
    """

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text

    def write(self, line: str) -> int:
        return self._text.write(line.removesuffix("\r\n") + "\n")


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, dict | list | tuple | bool):
        return json.dumps(value, ensure_ascii=False, default=plain)
    return str(value)
