"""Rows in Parquet and Arrow files, a bounded number of them in memory. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from types import GenericAlias
from typing import TYPE_CHECKING, Any, BinaryIO

from gristmill.data.formats import Format
from gristmill.data.places import needs
from gristmill.data.template import names
from gristmill.errors import DataInvalid

if TYPE_CHECKING:
    import pyarrow as pa

#: The type of a column: `str`, `int`, `float`, `bool`, a list of one (`list[float]`), a dict from
#: field to type for objects, a name that Arrow knows ("uint64"), or a type of pyarrow.
ColumnType = Any

#: Rows that are held at once. Reading a batch more often costs little, memory does.
BATCH_ROWS = 2000
#: From how many rows the types of columns are learned that nobody has named.
LEARNED_ROWS = 10_000
_BUFFER_BYTES = 1 << 20


def read_columnar(stream: BinaryIO, name: str, format_: Format) -> Iterator[dict[str, Any]]:
    """Raises DataInvalid for a file that is damaged or of another kind."""
    pa = _pyarrow(f"{name} is a {format_.value} file, and reading it")
    try:
        batches = _parquet_batches(stream) if format_ is Format.PARQUET else _arrow_batches(stream)
        for batch in batches:
            yield from rows_of(batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DataInvalid(f"{name} cannot be read as {format_.value}: {error}.") from error


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch or a table."""
    columns = batch.schema.names
    values = [column.to_pylist() for column in batch.columns]
    if not columns:
        return
    for row in zip(*values, strict=True):
        yield dict(zip(columns, row, strict=True))


def _parquet_batches(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    # Without these a whole row group, which may be the whole file, would be held.
    with pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        yield from file.iter_batches(BATCH_ROWS, use_threads=False)


def _arrow_batches(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    with _opened_arrow(stream) as file:
        is_stream = hasattr(file, "read_next_batch")
        batches = file if is_stream else map(file.get_batch, range(file.num_record_batches))
        for batch in batches:
            # All rows may be in one batch; as Python's values they take ten times as much memory.
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _opened_arrow(stream: BinaryIO) -> Any:
    """Both kinds of Arrow files: with an index at the end, and as a stream."""
    import pyarrow as pa

    magic = stream.read(6)
    stream.seek(0)
    return (pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream)(stream)


def write_columnar(
    stream: BinaryIO,
    rows: Iterable[dict[str, Any]],
    format_: Format,
    *,
    types: Mapping[str, ColumnType] | None = None,
) -> int:
    """Returns how many rows there were.

    Columns and their types are learned from the first rows; those in `types` are given. A column
    that is empty in all of them is of texts. Raises DataInvalid, naming row and column, where a
    later value does not fit.
    """
    _pyarrow(f"Writing {format_.value} files")
    rows = iter(rows)
    first = list(islice(rows, LEARNED_ROWS))
    given = {column: arrow_type(wanted) for column, wanted in (types or {}).items()}
    schema = _learn(first, given)
    num_rows = 0
    with _writer(stream, schema, format_) as writer:
        for batch in _batches(chain(first, rows)):
            writer.write_batch(_record_batch(batch, schema, num_rows))
            num_rows += len(batch)
    return num_rows


def column_types(stream: BinaryIO, format_: Format) -> dict[str, ColumnType]:
    """The types of the columns of a Parquet or Arrow file, to give them to another."""
    pa = _pyarrow(f"Reading {format_.value} files")
    is_parquet = format_ is Format.PARQUET
    schema = pa.parquet.read_schema(stream) if is_parquet else _opened_arrow(stream).schema
    return {field.name: field.type for field in schema}


def arrow_type(wanted: ColumnType) -> pa.DataType:
    import pyarrow as pa

    if isinstance(wanted, Mapping):
        return pa.struct([pa.field(name, arrow_type(inner)) for name, inner in wanted.items()])
    if isinstance(wanted, GenericAlias):
        return pa.list_(arrow_type(wanted.__args__[0]))
    if isinstance(wanted, type):
        aliases = {str: "string", int: "int64", float: "float64", bool: "bool"}
        return pa.type_for_alias(aliases[wanted])
    return pa.type_for_alias(wanted) if isinstance(wanted, str) else wanted


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    rows = iter(rows)
    while batch := list(islice(rows, LEARNED_ROWS)):
        yield batch


def _learn(rows: list[dict[str, Any]], types: Mapping[str, pa.DataType]) -> pa.Schema:
    import pyarrow as pa

    columns = list(dict.fromkeys(chain.from_iterable(rows))) or list(types)
    fields = []
    for column in columns:
        found = types.get(column)
        if found is None:
            found = _type_of([row.get(column) for row in rows], column)
        fields.append(pa.field(column, found))
    return pa.schema(fields)


def _type_of(values: list[Any], column: str) -> pa.DataType:
    import pyarrow as pa

    try:
        found = pa.infer_type(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise _does_not_fit(values, column, None, 0, error) from error
    return _without_nulls(found)


def _without_nulls(found: pa.DataType) -> pa.DataType:
    """The same with texts wherever nothing was seen, so that later rows may bring something."""
    import pyarrow as pa

    if pa.types.is_null(found):
        return pa.string()
    if pa.types.is_list(found):
        return pa.list_(_without_nulls(found.value_type))
    if pa.types.is_struct(found):
        fields = [found.field(i) for i in range(found.num_fields)]
        return pa.struct([pa.field(field.name, _without_nulls(field.type)) for field in fields])
    return found


def _record_batch(rows: list[dict[str, Any]], schema: pa.Schema, num_before: int) -> pa.RecordBatch:
    import pyarrow as pa

    known = set(schema.names)
    for number, row in enumerate(rows, num_before + 1):
        if row.keys() - known:
            raise DataInvalid(
                f"Row {number} has {names(sorted(row.keys() - known))}, and the first "
                f"{LEARNED_ROWS} rows have the columns {names(schema.names)}. Give every row the "
                "same columns, or write JSON lines."
            )
    arrays = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        try:
            arrays.append(pa.array(values, field.type, from_pandas=True))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise _does_not_fit(values, field.name, field.type, num_before, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _does_not_fit(
    values: list[Any],
    column: str,
    wanted: pa.DataType | None,
    num_before: int,
    error: Exception,
) -> DataInvalid:
    """Which value it was. Without a type in mind: the first that is of another kind than before."""
    import pyarrow as pa

    for number, value in enumerate(values, num_before + 1):
        try:
            if wanted is None:
                pa.infer_type([v for v in values[: number - num_before] if v is not None])
            else:
                pa.array([value], wanted, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            shown = repr(value)
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            before = "the rows before have others" if wanted is None else f"it holds {wanted}"
            return DataInvalid(
                f"Row {number}, column {column!r}: {shown} does not fit, {before}. Make the "
                "values of a column of one type, or write JSON lines."
            )
    return DataInvalid(f"Column {column!r}: {error}")


def _writer(stream: BinaryIO, schema: pa.Schema, format_: Format) -> Any:
    import pyarrow as pa

    if format_ is Format.PARQUET:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(stream, schema, compression="zstd")
    return pa.ipc.new_file(stream, schema)


def _pyarrow(what: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise needs("pyarrow", what) from error
    return pyarrow
