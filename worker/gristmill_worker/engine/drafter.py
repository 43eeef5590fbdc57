"""Guesses a row's next tokens from its own text, so that one step can give it several.

A step reads all weights once, however few rows it has, so towards the end of a batch a step of four
rows costs nearly what one of sixteen does. The places that are empty then are filled with draft
tokens: where the newest tokens of a row have stood before in its prompt or answer, what followed
them there is likely to follow again (prompt lookup). The model computes the drafts like a piece of
a prompt, the Sampler picks at each of their positions as it would have anyway, and drafts count as
far as they are what was picked. So a row's tokens are the same with drafts and without: its logits
do not depend on what else a step computes, and its draws depend on (seed, position) alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Tokens that must have stood before, in the same order.
_NGRAM = 2
#: What a step of a CPU costs beyond its tokens, in the time of one token: measured, about 20 ms to
#: read the weights of a small model and to go through its layers, and 1 ms a token.
FIXED_TOKENS = 16
#: Most drafts of one row in one step.
MAX_DRAFTS = 16
#: What a row is believed to have had accepted and rejected before it has drafted anything, and how
#: much of the past counts after each step with drafts.
_ACCEPTED, _REJECTED, _MEMORY = 2.0, 1.0, 0.9


class Drafter:
    """The drafts of one Sequence, and how many of them come true."""

    def __init__(self) -> None:
        #: Where the newest occurrence of each n-gram ends, but for the one at the very end.
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = _NGRAM
        self._accepted, self._rejected = _ACCEPTED, _REJECTED

    @property
    def acceptance(self) -> float:
        """The estimated probability that a draft is right, given that those before it are."""
        return self._accepted / (self._accepted + self._rejected)

    def draft(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow. `token_ids` only grows between calls."""
        if limit < 1 or len(token_ids) < _NGRAM:
            return []
        for end in range(self._num_indexed, len(token_ids)):
            self._ends[tuple(token_ids[end - _NGRAM : end])] = end
        self._num_indexed = max(self._num_indexed, len(token_ids))
        begin = self._ends.get(tuple(token_ids[-_NGRAM:]))
        if begin is None:
            return []
        # What repeats up to the very end is taken to go on in the same way.
        period = len(token_ids) - begin
        return [token_ids[begin + i % period] for i in range(limit)]

    def learn(self, *, num_drafts: int, num_accepted: int) -> None:
        """How a step went: drafts behind the first wrong one say nothing."""
        self._accepted = self._accepted * _MEMORY + num_accepted
        self._rejected = self._rejected * _MEMORY + (num_accepted < num_drafts)


def worthwhile_drafts(acceptance: float, *, num_tokens: int, fixed_tokens: int) -> int:
    """How many drafts of a row pay in a step that computes `num_tokens` tokens without any.

    A step costs `fixed_tokens` + T, in the time that one more token takes. The j-th draft adds 1 to
    that and acceptance^j tokens to the answers, which otherwise cost 1 + fixed_tokens / T each.
    """
    gain = 1 + fixed_tokens / num_tokens
    depth = math.log(gain) / -math.log(min(acceptance, 0.99))
    return min(int(depth), MAX_DRAFTS)
