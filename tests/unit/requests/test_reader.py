"""Bytes to lines: the same lines however the bytes arrive, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gristmill.requests.reader import Line, read_lines


class Dripping(io.RawIOBase):
    """A source that hands its bytes out in pieces of given sizes, as a network would."""

    def __init__(self, content: bytes, sizes: Sequence[int]) -> None:
        self._source = io.BytesIO(content)
        self._sizes = list(sizes)
        self.largest_read = 0

    def read(self, size: int = -1) -> bytes:
        self.largest_read = max(self.largest_read, size)
        return self._source.read(self._sizes.pop() if self._sizes else size)


def lines_of(content: bytes, *, max_line_bytes: int = 1000) -> list[Line]:
    return list(read_lines(io.BytesIO(content), max_line_bytes=max_line_bytes))


def contents_of(content: bytes) -> list[bytes | None]:
    return [line.content for line in lines_of(content)]


def test_only_byte_0a_ends_a_line() -> None:
    content = "a\u2028b\u0085c\rd\x0be\x0cf".encode()

    assert contents_of(content + b"\n" + content) == [content, content]


def test_B03_a_byte_order_mark_is_ignored_at_the_start_and_where_files_were_joined() -> None:
    bom = b"\xef\xbb\xbf"

    assert contents_of(bom + b"1\n2\n" + bom + b"3\n") == [b"1", b"2", b"3"]
    assert contents_of(bom) == [b""]


def test_B04_crlf_blank_lines_and_a_missing_last_newline() -> None:
    lines = lines_of(b"1\r\n\n \t\n4\n5")

    assert [(line.number, line.content) for line in lines] == [
        (1, b"1"),
        (2, b""),
        (3, b""),
        (4, b"4"),
        (5, b"5"),
    ]
    assert [line.end for line in lines] == [3, 4, 7, 9, 10]


def test_an_empty_source_has_no_lines() -> None:
    assert lines_of(b"") == []


def test_a_line_over_the_limit_is_measured_and_not_kept() -> None:
    long, limit = b"x" * 5_000_000, 1000

    lines = lines_of(b"1\n" + long + b"\n3\n" + long, max_line_bytes=limit)

    assert [line.content for line in lines] == [b"1", None, b"3", None]
    assert [line.num_bytes for line in lines] == [1, len(long), 1, len(long)]
    assert lines[-1].end == 2 * len(long) + 5


def test_a_line_of_exactly_the_limit_is_read() -> None:
    assert lines_of(b"x" * 10, max_line_bytes=10)[0].content == b"x" * 10
    assert lines_of(b"x" * 11 + b"\n", max_line_bytes=10)[0].content is None


def test_the_source_is_read_in_pieces() -> None:
    source = Dripping(b"x\n" * 10, [])

    list(read_lines(source, max_line_bytes=100))  # type: ignore[arg-type]

    assert 0 < source.largest_read <= 2**20


PIECE = st.sampled_from(
    [b"\n", b"\r\n", b"\n\n", b" \t\n", b"\xef\xbb\xbf", b"{}", b'{"a": 1}', b"\xe2\x80\xa8", b"\r"]
)


@given(st.lists(PIECE), st.lists(st.integers(1, 7)))
def test_records_do_not_depend_on_how_the_bytes_arrive(
    pieces: list[bytes], sizes: list[int]
) -> None:
    content = b"".join(pieces)

    dripped = list(read_lines(Dripping(content, sizes), max_line_bytes=6))  # type: ignore[arg-type]

    assert dripped == lines_of(content, max_line_bytes=6)


@given(st.lists(PIECE))
def test_lines_are_those_of_a_split_at_newlines(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()

    lines = lines_of(content)

    assert [line.num_bytes for line in lines] == [len(line) for line in expected]
    assert [line.number for line in lines] == list(range(1, len(expected) + 1))
    assert all(
        line.content in raw for line, raw in zip(lines, expected, strict=True) if line.content
    )
    if lines:
        assert lines[-1].end == len(content)


@given(st.lists(st.lists(PIECE).map(b"".join).filter(bool), min_size=2, max_size=3))
def test_joined_files_have_the_records_of_each(files: list[bytes]) -> None:
    whole = [file if file.endswith(b"\n") else file + b"\n" for file in files]

    records = [content for file in whole for content in contents_of(file) if content]

    assert [content for content in contents_of(b"".join(whole)) if content] == records
