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
from typing import Any

import numpy as np
import torch

from gristmill.types import SamplingParams
from gristmill_worker.engine.draw import Draw, draw, uniform
from gristmill_worker.engine.grammar import Bits, apply_masks
from gristmill_worker.engine.likeliest import likeliest_of_all
from gristmill_worker.engine.penalties import TokenCounts, apply_penalties

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class SamplingRow:
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


@torch.inference_mode()
def sample(
    logits: torch.Tensor,  # [S, vocab_size] float32; changed in place by steps 1 to 3
    rows: Sequence[SamplingRow],
) -> list[int | Unsampled]:
    """The next token id of each row."""
    if not rows:
        return []
    apply_penalties(
        logits, [(i, row.params, row.counts) for i, row in enumerate(rows) if row.counts]
    )
    _add_bias(logits, rows)
    _forbid(logits, rows)
    apply_masks(logits, [(i, row.allowed) for i, row in enumerate(rows) if row.allowed is not None])
    largest, token_ids = likeliest_of_all(logits)
    picked: list[int | Unsampled] = token_ids.tolist()
    draws = [
        Draw(i, row.params, uniform(row.params.seed, row.num_generated))
        for i, row in enumerate(rows)
        if not row.params.greedy
    ]
    for one, token_id in zip(draws, draw(logits, draws), strict=True):
        picked[one.row_idx] = token_id
    for i, value in enumerate(largest.tolist()):
        if value != value or value == float("inf"):  # a maximum hands on NaN: one pass tells both
            picked[i] = Unsampled.NOT_FINITE
        elif value == float("-inf"):
            picked[i] = Unsampled.NOTHING_LEFT
    return picked


def _add_bias(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    biased = [(i, row.params.logit_bias) for i, row in enumerate(rows) if row.params.logit_bias]
    if biased:
        arrays = [_bias_arrays(logit_bias) for _, logit_bias in biased]
        row_idx = np.repeat([i for i, _ in biased], [len(ids) for ids, _ in arrays])
        token_ids = np.concatenate([ids for ids, _ in arrays])
        biases = torch.from_numpy(np.concatenate([bias for _, bias in arrays])).to(logits.device)
        where = tuple(torch.from_numpy(part).to(logits.device) for part in (row_idx, token_ids))
        logits.index_put_(where, biases, accumulate=True)


@lru_cache(maxsize=1024)
def _bias_arrays(logit_bias: tuple[tuple[int, float], ...]) -> tuple[_Array, _Array]:
    """Token ids and biases. Kept, since a row has the same at every step."""
    token_ids, biases = zip(*logit_bias, strict=True)
    return np.array(token_ids, np.int64), np.array(biases, np.float32)


def _forbid(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    forbidden = [(i, t) for i, row in enumerate(rows) for t in row.forbidden_ids]
    if forbidden:
        row_idx, token_ids = torch.tensor(forbidden).to(logits.device).unbind(dim=1)
        logits[row_idx, token_ids] = float("-inf")
