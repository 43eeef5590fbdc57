"""Answers that end in a loop are found, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.repetition import Repetition, find_repetition


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([], None),
        ([7], None),
        ([7] * 31, None),
        ([7] * 32, Repetition(1, 0, 32)),
        ([1, 2, 3, *[7] * 40], Repetition(1, 3, 40)),
        ([1, *[5, 6, 7, 8] * 10], Repetition(4, 1, 10)),
        ([*[5, 6, 7, 8] * 10, 5, 6], Repetition(4, 0, 10)),  # cut off within a round
        ([*[5, 6, 7, 8] * 10, 2], Repetition(4, 0, 10)),  # an end token behind it
        ([*[5, 6, 7, 8] * 10, 2, 3], None),  # the model found its way out
        ([*range(50), *range(50), *range(50)], None),  # three times may be meant
        ([*range(50)] * 4, Repetition(50, 0, 4)),
        ([*range(1000)], None),
    ],
)
def test_a_loop_at_the_end_is_found(token_ids: list[int], expected: Repetition | None) -> None:
    assert find_repetition(token_ids) == expected


def found_by_trying(ids: Sequence[int], min_count: int, min_tokens: int) -> Repetition | None:
    """Every period, token by token: slow and obvious."""
    found: list[Repetition] = []
    for period in range(1, len(ids)):
        begin = len(ids) - period
        while begin > 0 and ids[begin - 1] == ids[begin - 1 + period]:
            begin -= 1
        covered = len(ids) - begin
        if covered >= min_tokens and covered >= min_count * period:
            found.append(Repetition(period, begin, covered // period))
    return min(found, key=lambda one: (one.from_token, one.period), default=None)


@given(
    head=st.lists(st.integers(0, 2), max_size=12),
    loop=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    count=st.integers(0, 8),
    tail=st.lists(st.integers(0, 2), max_size=3),
)
def test_it_finds_what_trying_every_period_finds(
    head: list[int], loop: list[int], count: int, tail: list[int]
) -> None:
    ids = [*head, *loop * count, *tail]

    expected = found_by_trying(ids, 3, 6) or found_by_trying(ids[:-1], 3, 6)

    assert find_repetition(ids, min_count=3, min_tokens=6) == expected


@given(st.lists(st.integers(0, 1), max_size=60))
def test_what_it_says_is_true(ids: list[int]) -> None:
    found = find_repetition(ids, min_count=2, min_tokens=4)

    if found is not None:
        looped = ids[found.from_token :]
        ends = [looped, looped[:-1]]  # the last token may stand behind the loop
        assert any(
            all(end[i] == end[i % found.period] for i in range(len(end)))
            and len(end) // found.period == found.count
            for end in ends
        )


def test_a_long_answer_takes_no_longer_a_token() -> None:
    class Counted(list[int]):
        reads = 0

        def __getitem__(self, index: object) -> object:  # type: ignore[override]
            Counted.reads += 1
            return super().__getitem__(index)  # type: ignore[index]

    from gristmill import repetition

    repetition._prefix_matches(Counted([1, 2] * 20_000))

    assert Counted.reads < 6 * 40_000
