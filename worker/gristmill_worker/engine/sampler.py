"""Picks the next token of each row from its logits. Rows do not affect each other.

A row's order of operations: logit_bias, then temperature, top_k, top_p, min_p, then one draw. The
draw is a pure function of (seed, number of tokens generated so far), so a row that is preempted,
resumed on another machine or batched with others draws the same. Greedy rows take the largest
logit, the lowest id among equals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill.types import SamplingParams

#: Candidates that are sorted first for top_k and top_p; only rows that need more sort everything.
_NUM_CANDIDATES = 256
#: Below this a temperature is as good as zero, and dividing by it would overflow.
_LOWEST_TEMPERATURE = 1e-6


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the Sampler must know of one row of logits."""

    params: SamplingParams
    num_generated: int


@torch.inference_mode()
def sample(
    logits: torch.Tensor,  # [S, vocab_size] float32; changed in place by logit_bias
    rows: Sequence[SamplingRow],
) -> list[int | None]:
    """The next token id of each row; None where the model's logits hold NaN."""
    if not rows:
        return []
    _add_bias(logits, rows)
    largest, token_ids = logits.max(dim=-1)
    picked = token_ids.tolist()
    drawing = [i for i, row in enumerate(rows) if not row.params.greedy]
    if drawing:
        drawn = _draw(logits[drawing], [rows[i] for i in drawing])
        for i, token_id in zip(drawing, drawn, strict=True):
            picked[i] = token_id
    is_nan = torch.isnan(largest).tolist()  # max() hands on NaN, so no second pass is needed
    return [None if nan else token for nan, token in zip(is_nan, picked, strict=True)]


def uniform(seed: int, num_generated: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (53 bits of BLAKE2b)."""
    text = f"{seed}/{num_generated}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _add_bias(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    biased = [(i, t, bias) for i, row in enumerate(rows) for t, bias in row.params.logit_bias]
    if biased:
        row_idx, token_ids, biases = zip(*biased, strict=True)
        where = (torch.tensor(row_idx), torch.tensor(token_ids))
        bias = torch.tensor(biases, dtype=logits.dtype)
        logits.index_put_(
            tuple(index.to(logits.device) for index in where),
            bias.to(logits.device),
            accumulate=True,
        )


def _draw(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One draw for each row of logits [S, V] by inversion of the cumulative distribution.

    The sum runs in the order of token ids and in float64, so that a difference in the last bit of
    the logits changes the outcome only with a probability of that size.
    """
    params = [row.params for row in rows]
    temperatures = _column([max(p.temperature, _LOWEST_TEMPERATURE) for p in params], logits)
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperatures
    weights = scaled.double().exp()  # [S, V]; the largest is 1, so nothing overflows
    limited = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0]
    if limited:
        thresholds = _thresholds(weights[limited], [params[i] for i in limited])
        weights[limited] = weights[limited].where(weights[limited] >= thresholds, 0.0)
    min_p = _column([p.min_p for p in params], logits).double()
    weights = weights.where(weights >= min_p, 0.0)  # relative to the largest, which is 1
    cumulative = weights.cumsum(dim=-1)
    uniforms = [uniform(row.params.seed, row.num_generated) for row in rows]
    targets = _column(uniforms, logits).double() * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    token_ids: list[int] = drawn.clamp(max=logits.shape[-1] - 1).tolist()
    return token_ids


def _thresholds(weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The smallest weight that top_k and top_p keep, for each row. [S, 1] float64

    top_p keeps the fewest tokens whose probabilities (after top_k) add up to at least top_p; the
    likeliest one always stays. Equal weights stay or go together.
    """
    vocab_size = weights.shape[-1]
    largest_k = max(p.top_k for p in params)
    totals = weights.sum(dim=-1)
    num = min(vocab_size, max(_NUM_CANDIDATES, largest_k))
    while True:
        candidates = weights.topk(num, dim=-1).values  # sorted, largest first
        thresholds: list[float] = []
        for row, p, total in zip(candidates, params, totals, strict=True):
            kept = row[: p.top_k] if p.top_k > 0 else row
            mass = kept.sum() if p.top_k > 0 else total
            reached = torch.searchsorted(kept.cumsum(0), p.top_p * mass) if p.top_p < 1.0 else None
            last = len(kept) - 1 if reached is None else int(reached)
            if last >= len(kept):
                if p.top_k == 0 and num < vocab_size:
                    break  # the nucleus is larger than the candidates: look at all tokens
                last = len(kept) - 1
            thresholds.append(float(kept[last]))
        else:
            return _column(thresholds, weights).double()
        num = vocab_size


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).to(like.dtype)[:, None]
