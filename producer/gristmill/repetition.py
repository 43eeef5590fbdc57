"""Finds answers that end in a loop: the same tokens over and over until a limit cut them off.

Nothing is done about a loop, the result only says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Fewer repetitions, or fewer tokens in all of them, are taken for style: "ha ha ha", a ruled line.
MIN_COUNT = 4
MIN_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Repetition:
    """The tokens from `from_token` on are `count` times the first `period` of them, and a rest
    that begins the same way."""

    period: int
    from_token: int
    count: int


def find_repetition(
    token_ids: Sequence[int], *, min_count: int = MIN_COUNT, min_tokens: int = MIN_TOKENS
) -> Repetition | None:
    """The longest loop that `token_ids` ends in; of several, the one with the shortest period.

    Takes time and memory in proportion to the number of tokens. The last token may be an end token
    that stands behind the loop.
    """
    found = _find(token_ids, min_count, min_tokens)
    return found or _find(token_ids[:-1], min_count, min_tokens)


def _find(token_ids: Sequence[int], min_count: int, min_tokens: int) -> Repetition | None:
    # Each round has the last token once at least and is no longer than this: most answers end here.
    longest_round = len(token_ids) // min_count
    if (
        len(token_ids) < min_tokens
        or token_ids[-1] not in token_ids[-longest_round - 1 : -1]
        or token_ids.count(token_ids[-1]) < min_count
    ):
        return None
    backwards = list(reversed(token_ids))
    best: Repetition | None = None
    longest = min_tokens - 1
    for period, matched in enumerate(_prefix_matches(backwards)):
        num_tokens = period + matched
        if period and num_tokens > longest and num_tokens >= min_count * period:
            longest = num_tokens
            best = Repetition(period, len(token_ids) - num_tokens, num_tokens // period)
    return best


def _prefix_matches(ids: Sequence[int]) -> list[int]:
    """How many of the tokens from each place on equal those from the start (the Z-function).

    Gusfield, Algorithms on Strings, Trees and Sequences, section 1.3: every comparison that
    succeeds moves `end` on, so there are at most 2 n of them.
    """
    matches = [0] * len(ids)
    begin = end = 0  # the match found so far that reaches furthest
    for i in range(1, len(ids)):
        matched = min(end - i, matches[i - begin]) if i < end else 0
        while i + matched < len(ids) and ids[matched] == ids[i + matched]:
            matched += 1
        if i + matched > end:
            begin, end = i, i + matched
        matches[i] = matched
    return matches
