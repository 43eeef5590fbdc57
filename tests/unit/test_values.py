"""Durations and counts as people write and read them."""

from __future__ import annotations

import pytest

from gristmill.errors import UsageError
from gristmill.values import counted, format_duration, parse_duration


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
        (0.0854, "85 ms"),
        (4.24, "4.2 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 0 s"),
        (95, "1 min 35 s"),
        (3599.7, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations_are_written(seconds, text):
    assert format_duration(seconds) == text


def test_counts_agree_with_their_noun():
    assert [counted(n, "row") for n in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
