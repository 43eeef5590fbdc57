"""Penalties for tokens that a row has had already, and the counts that they are computed from.

Only tokens that occurred are touched, never a whole vocabulary, and only in rows that ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gristmill.types import SamplingParams
from gristmill_worker.upload import upload


class TokenCounts:
    """How often each token was generated in one row, and which ones its prompt holds.

    A function of the row's token ids alone: `take` is told all of them and looks at what is new, so
    a row that was preempted or resumed counts the same as one that never stopped.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_taken = 0
        self._place_of: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float64)

    def take(self, token_ids: Sequence[int]) -> None:
        """`token_ids` is the prompt followed by all that was generated."""
        for i in range(self._num_taken, len(token_ids)):
            place = self._place_of.setdefault(token_ids[i], len(self._place_of))
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token_ids[i]
            self._counts[place] += i >= self._num_prompt_tokens
        self._num_taken = len(token_ids)

    @property
    def ids(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Each token that occurred, once."""
        return self._ids[: len(self._place_of)]

    @property
    def counts(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How often each of `ids` was generated; 0 for those that only the prompt holds."""
        return self._counts[: len(self._place_of)]


def apply_penalties(
    logits: torch.Tensor,  # [S, V] float32, changed in place
    rows: Sequence[tuple[int, SamplingParams, TokenCounts]],
) -> None:
    """Lower the logits of tokens that occurred. `rows` has an index into `logits` for each.

    repetition_penalty divides a positive logit and multiplies a negative one, of tokens of prompt
    and output (CTRL, arXiv:1909.05858). A token that was generated k times then loses
    k * frequency_penalty + presence_penalty; the prompt does not count for these two.
    """
    if not rows:
        return
    num_ids = [len(counts.ids) for _, _, counts in rows]
    row_idx = np.repeat([i for i, _, _ in rows], num_ids)
    token_ids = np.concatenate([counts.ids for _, _, counts in rows])
    factors = np.repeat([params.repetition_penalty for _, params, _ in rows], num_ids)
    losses = np.concatenate(
        [
            counts.counts * params.frequency_penalty + (counts.counts > 0) * params.presence_penalty
            for _, params, counts in rows
        ]
    )
    device = logits.device
    where = tuple(upload(torch.from_numpy(part), device) for part in (row_idx, token_ids))
    factor, loss = (
        upload(torch.from_numpy(part).to(logits.dtype), device) for part in (factors, losses)
    )
    found = logits[where]
    repeated = torch.where(found > 0, found / factor, found * factor)
    logits[where] = repeated - loss
