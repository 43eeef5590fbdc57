"""Picks the next token of each row from its logits. Rows do not affect each other.

A row's order of operations:

    1  repetition_penalty, then frequency_penalty and presence_penalty   (penalties.py)
    2  logit_bias
    3  tokens that its grammar does not allow become impossible (grammar.py), and with min_tokens
       those that would end the row
    4  temperature
    5  top_k, top_p, min_p                                               (draw.py)
    6  one draw

The draw is a pure function of (seed, number of tokens generated so far), so a row that is
preempted, resumed on another machine or batched with others draws the same. Greedy rows take the
largest logit after step 3, the lowest id among equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from gristmill.types import SamplingParams
from gristmill_worker.engine.draw import UNDECIDED, Draw, draw, uniform
from gristmill_worker.engine.grammar import Bits, apply_masks
from gristmill_worker.engine.likeliest import likeliest_of_all
from gristmill_worker.engine.penalties import TokenCounts, apply_penalties
from gristmill_worker.upload import upload

_Array = np.ndarray[Any, np.dtype[Any]]


class SamplingRow(NamedTuple):  # as Scheduled
    """What the Sampler must know of one row of logits."""

    params: SamplingParams
    num_generated: int
    #: Only of rows that have a penalty.
    counts: TokenCounts | None = None
    #: Tokens that are impossible at this step.
    forbidden_ids: Sequence[int] = ()
    #: One bit for each token, of rows with a grammar; all other tokens are impossible.
    allowed: Bits | None = None


#: A row whose token does not matter.
NO_WISHES = SamplingRow(SamplingParams(max_tokens=1, temperature=0.0), 0)


class Unsampled(Enum):
    """Why no token could be picked; the message of the row's error."""

    NOT_FINITE = "The model's logits hold NaN or infinity"
    NOTHING_LEFT = "The parameters of this row leave no token possible"


#: What stands in the place of a token that could not be picked.
_NOT_FINITE, _NOTHING_LEFT = -2, -3
_REASONS = {_NOT_FINITE: Unsampled.NOT_FINITE, _NOTHING_LEFT: Unsampled.NOTHING_LEFT}


@dataclass(frozen=True, slots=True)
class Picks:
    """What was picked of each row of logits, where the logits are."""

    token_ids: torch.Tensor  # [S] int64; UNDECIDED or one of _REASONS
    #: The draws that may be undecided, each of a row of `logits`; the rows they stand for.
    draws: Sequence[Draw] = ()
    row_idx: Sequence[int] = ()
    logits: torch.Tensor | None = None  # [len(draws), vocab_size] float32

    def seen(self, token_ids: Sequence[int]) -> list[int | Unsampled]:
        """`token_ids`, read from the device, in plain words."""
        return [i if i >= 0 else _REASONS.get(i, i) for i in token_ids]

    @torch.inference_mode()
    def decided(self, token_ids: Sequence[int]) -> dict[int, int]:
        """The tokens of the rows that are undecided in `token_ids`, which the host has waited for
        and now waits for again."""
        undecided = [
            one
            for one, row_idx in zip(self.draws, self.row_idx, strict=True)
            if token_ids[row_idx] == UNDECIDED
        ]
        if not undecided or self.logits is None:
            return {}
        drawn, found = draw(self.logits, undecided)
        return {self.row_idx[i]: i_d for i, i_d in zip(drawn, found.tolist(), strict=True)}


def sample(
    logits: torch.Tensor,  # [S, vocab_size] float32; changed in place by steps 1 to 3
    rows: Sequence[SamplingRow],
) -> list[int | Unsampled]:
    """The next token id of each row."""
    picks = pick(logits, rows)
    return picks.seen(picks.token_ids.tolist())


@torch.inference_mode()
def pick(
    logits: torch.Tensor,  # [S, vocab_size] float32; changed in place by steps 1 to 3
    rows: Sequence[SamplingRow],
    *,
    may_wait: bool = True,
) -> Picks:
    """The next token id of each row. Without `may_wait` the host reads nothing of the device."""
    if not rows:
        return Picks(torch.empty(0, dtype=torch.long, device=logits.device))
    apply_penalties(
        logits, [(i, row.params, row.counts) for i, row in enumerate(rows) if row.counts]
    )
    _add_bias(logits, rows)
    _forbid(logits, rows)
    apply_masks(logits, [(i, row.allowed) for i, row in enumerate(rows) if row.allowed is not None])
    largest, token_ids = likeliest_of_all(logits)
    draws = [
        Draw(i, row.params, uniform(row.params.seed, row.num_generated))
        for i, row in enumerate(rows)
        if not row.params.greedy
    ]
    if draws:
        row_idx, drawn = draw(logits, draws, may_wait=may_wait)
        token_ids = token_ids.index_copy(0, upload(torch.tensor(row_idx), logits.device), drawn)
    # A maximum hands on NaN: one pass over the logits tells both.
    token_ids = token_ids.masked_fill(largest.isnan() | (largest == float("inf")), _NOT_FINITE)
    token_ids = token_ids.masked_fill_(largest == float("-inf"), _NOTHING_LEFT)
    limited = [] if may_wait else [one for one in draws if one.is_limited]
    if not limited:
        return Picks(token_ids)
    places = upload(torch.tensor([one.row_idx for one in limited]), logits.device)
    return Picks(
        token_ids,
        [one._replace(row_idx=i) for i, one in enumerate(limited)],
        [one.row_idx for one in limited],
        logits.index_select(0, places),
    )


def _add_bias(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    biased = [(i, row.params.logit_bias) for i, row in enumerate(rows) if row.params.logit_bias]
    if biased:
        arrays = [_bias_arrays(logit_bias) for _, logit_bias in biased]
        row_idx = np.repeat([i for i, _ in biased], [len(ids) for ids, _ in arrays])
        token_ids = np.concatenate([ids for ids, _ in arrays])
        biases = np.concatenate([bias for _, bias in arrays])
        *where, values = (
            upload(torch.from_numpy(part), logits.device) for part in (row_idx, token_ids, biases)
        )
        logits.index_put_(tuple(where), values, accumulate=True)


@lru_cache(maxsize=1024)
def _bias_arrays(logit_bias: tuple[tuple[int, float], ...]) -> tuple[_Array, _Array]:
    """Token ids and biases. Kept, since a row has the same at every step."""
    token_ids, biases = zip(*logit_bias, strict=True)
    return np.array(token_ids, np.int64), np.array(biases, np.float32)


def _forbid(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    forbidden = [(i, t) for i, row in enumerate(rows) for t in row.forbidden_ids]
    if forbidden:
        where = upload(torch.tensor(forbidden), logits.device).unbind(dim=1)
        logits.index_put_(where, logits.new_full((), float("-inf")))
