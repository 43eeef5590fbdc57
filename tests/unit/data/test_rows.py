"""Rows go out to every format and come back, one at a time; what is broken is named."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aws_server import AwsServer

from gristmill.data import columnar, read_rows, write_rows
from gristmill.data.write import types_of
from gristmill.errors import DataInvalid, StoreError, UsageError

ROWS: list[dict[str, Any]] = [
    {"id": 1, "text": 'a, "quoted"\nline é', "score": 0.5, "tags": ["x", "y"]},
    {"id": 2, "text": "", "score": None, "tags": []},
    {"id": 3, "text": "😀\t", "score": -1e-9, "tags": ["z"]},
]
TEXTS = [
    {"id": str(row["id"]), "text": row["text"], "score": score, "tags": json.dumps(row["tags"])}
    for row, score in zip(ROWS, ("0.5", "", "-1e-09"), strict=True)
]
TYPED = ("jsonl", "jsonl.gz", "jsonl.zst", "ndjson", "parquet", "arrow", "feather")


@pytest.mark.parametrize("suffix", TYPED)
def test_what_is_written_is_read_again_with_its_types(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"

    assert write_rows(path, iter(ROWS)) == 3

    assert list(read_rows(path)) == ROWS
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "tsv.zst"])
def test_csv_holds_the_same_as_texts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"

    write_rows(path, ROWS)

    assert list(read_rows(path)) == TEXTS


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("jsonl.gz", "csv.zst", "parquet"):
        write_rows(tmp_path / f"a.{suffix}", ROWS)
        write_rows(tmp_path / f"b.{suffix}", ROWS)

        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_spreadsheets_with_a_byte_order_mark_and_carriage_returns_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfid, text \r\n1,"a ""b"", c"\r\n\r\n2,d\r\n')
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n\n{"id": 2}')

    assert list(read_rows(tmp_path / "a.csv")) == [
        {"id": "1", "text": 'a "b", c'},
        {"id": "2", "text": "d"},
    ]
    assert list(read_rows(tmp_path / "a.jsonl")) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.jsonl", b'{"a": 1}\n[1]\n', r"a\.jsonl, line 2: not one JSON object"),
        ("a.jsonl", b'[{"a": 1},\n', "line 1: .*one object a line"),
        ("a.jsonl", b'{"a": NaN}\n', "line 1"),
        ("a.jsonl", b'{"a": "\xff"}\n', "line 1"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "line 3: 3 values, and there are 2 columns"),
        ("a.csv", b"a,a\n1,2\n", "'a' more than once"),
        ("a.csv", b"a,\n1,2\n", "a column without a name"),
        ("a.csv", b'a\n"open\n', "line 2"),
        ("a.csv", b"a\n\xe9\n", "not UTF-8.*Save the file as UTF-8"),
        ("a.csv.gz", gzip.compress(b"a\n" + b"1\n" * 9999, mtime=0)[:-20], "cut off or damaged"),
        ("a.csv.gz", b"a\n1\n", "as gzip"),
        ("a.jsonl.zst", b"{}", "as zstd"),
        ("a.parquet", b"PAR1 and no more", "cannot be read as parquet"),
        ("a.arrow", b"ARROW1 and no more", "cannot be read as arrow"),
    ],
)
def test_a_broken_file_is_named_with_the_place(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataInvalid, match=what):
        list(read_rows(tmp_path / name))


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("rows.xlsx", r"the end of a name.*\.parquet"),
        ("rows.parquet.gz", "compressed inside"),
        (5, "A int is no data set"),
        (b"rows", "no data set"),
        ({"a": [1, 2]}, "A dict is one row"),
    ],
)
def test_what_is_no_data_set_is_refused_at_once(source: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        read_rows(source)


def test_files_that_are_not_there_or_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, match="There is no file"):
        list(read_rows(tmp_path / "a.csv"))
    with pytest.raises(UsageError, match="no folder"):
        write_rows(tmp_path / "no" / "a.csv", ROWS)


def test_a_write_that_fails_leaves_the_older_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_rows(path, [{"a": 1}])

    def failing() -> Iterator[dict[str, Any]]:
        yield {"a": 2}
        raise RuntimeError("no more rows")

    with pytest.raises(RuntimeError):
        write_rows(path, failing())

    assert list(read_rows(path)) == [{"a": 1}]
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_value_that_does_not_fit_its_column_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "LEARNED_ROWS", 2)
    rows: list[dict[str, Any]] = [{"a": 1}, {"a": None}, {"a": 2}, {"a": "three"}]

    with pytest.raises(DataInvalid, match="Row 4, column 'a': 'three' does not fit"):
        write_rows(tmp_path / "a.parquet", rows)
    with pytest.raises(DataInvalid, match="Row 2, column 'a': 'x' does not fit"):
        write_rows(tmp_path / "a.parquet", [{"a": 1}, {"a": "x"}])
    with pytest.raises(DataInvalid, match=r"Row 3 has 'b'.*the columns 'a'"):
        write_rows(tmp_path / "a.parquet", [*rows[:2], {"a": 3, "b": 1}])
    with pytest.raises(DataInvalid, match="Row 2 has 'b'"):
        write_rows(tmp_path / "a.csv", [{"a": 1}, {"b": 1}])


def test_csv_keeps_line_breaks_of_any_kind_and_what_looks_like_a_formula(tmp_path: Path) -> None:
    rows = [{"a": f"x{end}y{end}", "b": "=1+1"} for end in ("\r", "\n", "\r\n")]
    for name in ("a.csv", "a.tsv"):
        write_rows(tmp_path / name, [*rows, {"a": "plain", "b": None}])

        assert list(read_rows(tmp_path / name)) == [*rows, {"a": "plain", "b": ""}]
    assert (tmp_path / "a.csv").read_bytes().startswith(b'a,b\n"x\ry\r",=1+1\n')
    assert (tmp_path / "a.csv").read_bytes().endswith(b"\nplain,\n")


def test_columns_have_the_types_that_are_given_or_those_of_the_source(tmp_path: Path) -> None:
    schema = pa.schema([("small", pa.int16()), ("when", pa.timestamp("ms")), ("none", pa.int8())])
    moment = datetime(2026, 11, 30, 10, 45)
    table = pa.table({"small": [7], "when": [moment], "none": [None]}, schema)
    pq.write_table(table, tmp_path / "a.parquet")
    added = {"p": list[float], "receipt": {"seed": "uint64", "dtype": str}, "ok": bool}

    source = list(read_rows(tmp_path / "a.parquet"))
    rows = [{**source[0], "p": [0.5], "receipt": {"seed": 2**64 - 1, "dtype": None}, "ok": None}]
    types = {**types_of(tmp_path / "a.parquet"), **added}
    write_rows(tmp_path / "b.parquet", rows, types=types)

    found = pq.read_schema(tmp_path / "b.parquet")
    assert [found.field(name).type for name in schema.names] == schema.types
    assert found.field("ok").type == pa.bool_()
    assert found.field("receipt").type.field("seed").type == pa.uint64()
    assert list(read_rows(tmp_path / "b.parquet")) == rows


def test_arrow_streams_and_tables_are_rows_too(tmp_path: Path) -> None:
    table = pa.table({"a": range(5000), "b": [None] * 5000})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    expected = [{"a": i, "b": None} for i in range(5000)]

    assert list(read_rows(tmp_path / "a.arrow")) == expected
    assert list(read_rows(table)) == expected
    assert list(read_rows(table.to_reader())) == expected


def test_rows_come_from_generators_and_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(read_rows({"a": i} for i in range(2))) == [{"a": 0}, {"a": 1}]
    with pytest.raises(DataInvalid, match="Row 2 is a str"):
        list(read_rows([{"a": 1}, "b"]))

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}\n')))
    assert list(read_rows("-")) == [{"a": 1}]


class Frame:
    """What is used of a DataFrame of pandas, which the tests do not install."""

    __module__ = "pandas.core.frame"

    class columns:
        is_unique = True

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def iloc(self) -> Frame:
        return self

    def __getitem__(self, part: slice) -> Frame:
        return Frame(self._rows[part])

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self._rows


def test_what_is_missing_in_a_data_frame_is_null() -> None:
    rows = [{"a": float("nan") if i % 2 else 1.5, 3: "x"} for i in range(2500)]

    found = list(read_rows(Frame(rows)))

    assert len(found) == 2500
    assert found[:2] == [{"a": 1.5, "3": "x"}, {"a": None, "3": "x"}]


def test_s3_holds_any_format_under_any_key(aws: AwsServer, bucket: str) -> None:
    for name in ("part=1/a b.parquet", "a.jsonl.zst", "a.csv", "a.arrow"):
        url = aws.s3_url(bucket, name)

        assert write_rows(url, ROWS) == 3

        assert list(read_rows(url)) == (TEXTS if name.endswith(".csv") else ROWS)
    assert set(types_of(aws.s3_url(bucket, "part=1/a b.parquet"))) == set(ROWS[0])


def test_what_is_not_in_s3_or_not_allowed_there_is_said(aws: AwsServer, bucket: str) -> None:
    with pytest.raises(DataInvalid, match=r"There is no object 'none\.csv'"):
        list(read_rows(aws.s3_url(bucket, "none.csv")))
    with pytest.raises(StoreError, match="no-such-bucket"):
        write_rows(aws.s3_url("no-such-bucket", "a.csv"), ROWS)
    with pytest.raises(UsageError, match="names no object"):
        list(read_rows("s3://a.csv"))
