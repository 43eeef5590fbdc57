"""Durations and counts as people write and read them."""

from __future__ import annotations

import pytest

from gristmill.errors import UsageError
from gristmill.values import (
    counted,
    format_bytes,
    format_duration,
    parse_count,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("1.5m", 90.0), ("2h", 7200.0), (" 3s ", 3.0)],
)
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1w", "1 s", "0s", "1e3s", "nan", "٣s"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"1ms|500ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        *[(0, "0 ms"), (0.0042, "4.2 ms"), (0.00999, "10 ms"), (0.0854, "85 ms"), (0.9997, "1 s")],
        *[(4.24, "4.2 s"), (9.96, "10 s"), (45.9, "46 s"), (59.97, "1 min"), (95, "1 min 35 s")],
        *[(3599.7, "1 h"), (7500, "2 h 5 min"), (86_400, "1 d"), (273_600, "3 d 4 h")],
    ],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert format_duration(seconds) == text


def test_counts_agree_with_their_noun():
    assert [counted(n, "row") for n in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1000", 1000), ("25.6k", 25_600), ("4K", 4096), ("1.5m", 1_500_000), ("2G", 2 << 30)],
)
def test_small_letters_count_in_thousands_and_large_ones_in_1024(text, number):
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "k", "1kB", "-1", "1.5", "1e3", "0.0001k"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(UsageError, match="number"):
        parse_count(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (999, "999 B"), (3_400_000, "3.4 MB"), (2e12, "2.0 TB")]
)
def test_bytes_are_told_in_thousands(num_bytes, text):
    assert format_bytes(num_bytes) == text
