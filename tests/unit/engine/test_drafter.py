"""Drafts: what a row's own text suggests, and when suggesting pays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill_worker.engine.drafter import MAX_DRAFTS, Drafter, worthwhile_drafts


def test_what_followed_the_newest_tokens_before_is_drafted() -> None:
    assert Drafter().draft([1, 2, 3, 4, 9, 1, 2], limit=3) == [3, 4, 9]


def test_the_latest_occurrence_counts() -> None:
    assert Drafter().draft([1, 2, 3, 1, 2, 4, 5, 1, 2], limit=2) == [4, 5]


def test_a_loop_goes_on_for_as_long_as_is_asked() -> None:
    assert Drafter().draft([9, 5, 6, 7, 5, 6, 7, 5, 6], limit=7) == [7, 5, 6, 7, 5, 6, 7]
    assert Drafter().draft([3, 3, 3], limit=4) == [3, 3, 3, 3]


@pytest.mark.parametrize("token_ids", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_new_text_suggests_nothing(token_ids: list[int]) -> None:
    assert Drafter().draft(token_ids, limit=4) == []


def test_no_draft_without_room_for_one() -> None:
    assert Drafter().draft([1, 1, 1, 1], limit=0) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(1, 59), max_size=8))
def test_a_drafter_that_saw_the_row_grow_drafts_like_a_new_one(
    token_ids: list[int], seen_at: list[int]
) -> None:
    old = Drafter()
    for end in sorted(seen_at):
        old.draft(token_ids[:end], limit=4)

    assert old.draft(token_ids, limit=5) == Drafter().draft(token_ids, limit=5)


def test_acceptance_follows_what_happened_lately() -> None:
    good, bad = Drafter(), Drafter()
    for _ in range(30):
        good.learn(num_drafts=8, num_accepted=8)
        bad.learn(num_drafts=8, num_accepted=0)

    assert good.acceptance > 0.98
    assert bad.acceptance < 0.05
    for _ in range(3):
        bad.learn(num_drafts=4, num_accepted=4)
    assert bad.acceptance > 0.5


def test_a_lonely_row_drafts_most_and_a_full_step_drafts_least() -> None:
    def drafts(acceptance: float, num_tokens: int) -> int:
        return worthwhile_drafts(acceptance, num_tokens=num_tokens, fixed_tokens=16)

    assert drafts(0.9, 1) == MAX_DRAFTS
    assert drafts(0.5, 4) == 2  # 1 + 16/4 = 5: 0.5 * 5 and 0.25 * 5 are above 1
    assert drafts(0.5, 64) == 0  # 1.25 * 0.5 is not
    assert drafts(0.0001, 1) == 0
    assert drafts(1.0, 64) == MAX_DRAFTS
