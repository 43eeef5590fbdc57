"""How a batch went over time is kept in bounded room, and nothing that was counted is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gristmill.ledger.courses import FIRST_WIDTH_S, MAX_POINTS, OTHER, Course, Point

times = st.lists(st.integers(0, 40 * 86_400), min_size=1, max_size=200)


@given(times)
def test_a_course_stays_short_and_counts_every_row(seconds: list[int]) -> None:
    course = Course(1000)

    for second in sorted(seconds):
        course = course.with_point(Point(1, 2, 3), now=1000 + second)

    assert len(course.points) <= MAX_POINTS
    total = sum(course.points, Point())
    assert total == Point(len(seconds), 2 * len(seconds), 3 * len(seconds))
    assert course.width_s % FIRST_WIDTH_S == 0
    assert (max(seconds) // course.width_s) == len(course.points) - 1


def test_a_clock_that_goes_back_moves_nothing() -> None:
    course = Course(1000).with_point(Point(1), now=1012).with_point(Point(1), now=990)

    assert [point.rows for point in course.points] == [0, 0, 2]


def test_kinds_of_failures_beyond_some_count_together() -> None:
    course = Course(0)

    for i in range(100):
        course = course.with_failures({f"code-{i}": 2})
    course = course.with_failures({"x" * 500: 1, "": 1, "code-0": 1})

    assert sum(course.failures.values()) == 203
    assert len(course.failures) <= 41 and course.failures["code-0"] == 3
    assert course.failures[OTHER] == 2 * 60 + 2
