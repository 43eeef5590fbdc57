"""Numbers and times read as people write them."""

from __future__ import annotations

import pytest

from gristmill.dashboard import chart, formats


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *[(0, "0"), (7, "7"), (999, "999"), (12.5, "12.5"), (0.25, "0.25")],
        *[(1000, "1.00 k"), (9_999, "10.0 k"), (123_456, "123 k"), (999_600, "1.00 M")],
        *[(1_234_567, "1.23 M"), (5_600_000_000, "5.60 B"), (2e12, "2.00 T")],
    ],
)
def test_large_numbers_have_three_digits(number: float, text: str) -> None:
    assert formats.short(number) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        *[(0, 0, "0 %"), (0, 10, "0 %"), (1, 10_000, "< 1 %"), (5, 10, "50 %")],
        *[(9_999, 10_000, "99 %"), (10, 10, "100 %")],
    ],
)
def test_a_share_is_whole_only_when_nothing_is_left(part: int, whole: int, text: str) -> None:
    assert formats.percent(part, whole) == text


@pytest.mark.parametrize(
    ("then", "text"),
    [
        *[(1000, "just now"), (1001, "in a moment"), (940, "1 min ago"), (955, "45 s ago")],
        *[(1000 + 7200, "in 2 h"), (1000 - 3 * 86_400, "3 d ago")],
    ],
)
def test_times_are_told_by_their_distance(then: float, text: str) -> None:
    assert formats.distance(then, 1000) == text


def test_the_time_itself_stands_in_the_title() -> None:
    shown = formats.when(0, now=60)

    assert 'title="1970-01-01 00:00:00 UTC"' in shown and ">1 min ago<" in shown
    assert "\u2013" in formats.when(None, now=60)


def test_a_chart_has_a_step_for_each_value_and_nothing_for_none() -> None:
    drawn = chart.draw([0, 5, 10])

    assert drawn is not None and drawn.top == 10
    assert drawn.line.count("H") == 3 and drawn.line.endswith(f"H{chart.WIDTH:.1f}")
    assert chart.draw([]) is None and chart.draw([0, 0]) is None


def test_a_bar_is_full_when_every_row_has_ended() -> None:
    assert chart.bar(90, 10, 100) == chart.Bar(90.0, 10.0)
    assert chart.bar(0, 0, 0) == chart.Bar(0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("Nightly report", "Nightly report"), ("  two\n lines\t", "two lines"), (None, "")],
        *[("\u202eevil", "evil"), ("a\u2067b\u2069", "ab"), ("\u200b\ufeff", "")],
        *[("\u0645\u0631\u062d\u0628\u0627", "\u0645\u0631\u062d\u0628\u0627")],
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
    ],
)
def test_a_name_turns_nothing_around_and_hides_nothing(name: str | None, text: str) -> None:
    assert formats.plain(name) == text
