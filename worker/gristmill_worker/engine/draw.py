"""Draws one token of each row by inversion of its cumulative distribution, within its limits.

Rows without top_k, top_p and min_p look at the whole vocabulary. The others look at their likeliest
tokens only, and at more of them only if these do not suffice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from gristmill.types import SamplingParams

#: How many of the likeliest tokens are looked at for the limits, in turn; then all of them.
_NUM_CANDIDATES = (256, 4096)
#: Below this a temperature is as good as zero, and dividing by it would overflow.
_LOWEST_TEMPERATURE = 1e-6
#: Rows at a time on a CPU, so that their vocabularies stay in its caches.
_ROWS_AT_ONCE = 4


def draw(
    logits: torch.Tensor,  # [S, V] float32
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
) -> list[int]:
    """One token id for each row; uniforms[i], in [0, 1), decides about row i."""
    token_ids: list[int] = []
    at_once = _ROWS_AT_ONCE if logits.device.type == "cpu" else max(1, len(params))
    for begin in range(0, len(params), at_once):
        end = begin + at_once
        token_ids += _draw(logits[begin:end], params[begin:end], uniforms[begin:end])
    return token_ids


def uniform(seed: int, num_generated: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (53 bits of BLAKE2b)."""
    text = f"{seed}/{num_generated}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _draw(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> list[int]:
    temperatures = _column([max(p.temperature, _LOWEST_TEMPERATURE) for p in params], logits)
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures.to(logits.dtype)
    limited = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0]
    free = [i for i in range(len(params)) if i not in limited]
    token_ids = [0] * len(params)
    if free:
        weights = _rows(scaled, free).double().exp()  # the largest is 1, so nothing overflows
        for i, place in zip(free, _invert(weights, [uniforms[i] for i in free]), strict=True):
            token_ids[i] = place
    for num in (*_NUM_CANDIDATES, logits.shape[-1]):
        if not limited:
            break
        some = [params[i] for i in limited]
        drawn = _draw_limited(_rows(scaled, limited), some, [uniforms[i] for i in limited], num)
        for i, token_id in zip(limited, drawn, strict=True):
            token_ids[i] = -1 if token_id is None else token_id
        limited = [i for i in limited if token_ids[i] < 0]
    assert not limited, "all tokens of the vocabulary suffice"
    return token_ids


def _draw_limited(
    scaled: torch.Tensor,  # [S, V] logits over temperature, the largest is 0
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    num_candidates: int,
) -> list[int | None]:
    """None for a row whose limits may keep more tokens than the `num_candidates` likeliest.

    top_k keeps the k likeliest tokens; top_p the fewest of those whose probabilities (after top_k)
    add up to at least top_p, the likeliest one always; min_p those that have at least min_p of the
    likeliest one's probability. Tokens that are equally likely stay or go together.
    """
    vocab_size = scaled.shape[-1]
    num = min(vocab_size, max(num_candidates, *(p.top_k + 1 for p in params)))
    candidates, token_ids = scaled.topk(num, dim=-1)  # largest first
    weights = candidates.double().exp()
    within_k = _kept_by_top_k(params, num, scaled.device)
    cumulative = (weights * within_k).cumsum(dim=-1)
    mass = cumulative[:, -1:].clone()
    # The mass of the whole vocabulary, where top_p asks for a share of it.
    whole = [i for i, p in enumerate(params) if p.top_p < 1.0 and p.top_k == 0]
    if whole:
        mass[whole] = _rows(scaled, whole).double().exp().sum(dim=-1, keepdim=True)
    share = _column([p.top_p if p.top_p < 1.0 else float("inf") for p in params], scaled)
    within_p = torch.ones_like(within_k)
    within_p[:, 1:] = cumulative[:, :-1] < share * mass
    last = (within_k & within_p).sum(dim=-1, keepdim=True) - 1
    kept = candidates >= candidates.gather(-1, last)
    kept &= weights >= _column([p.min_p for p in params], scaled)
    # In the order of token ids, so that two tokens which are nearly equally likely may change
    # places without changing the draw.
    token_ids, order = token_ids.sort(dim=-1)
    places = _invert((weights * kept).gather(-1, order), uniforms)
    too_few = kept[:, -1].tolist() if num < vocab_size else [False] * len(params)
    drawn = token_ids[range(len(params)), places].tolist()
    return [None if few else token_id for few, token_id in zip(too_few, drawn, strict=True)]


def _kept_by_top_k(
    params: Sequence[SamplingParams], num: int, device: torch.device
) -> torch.Tensor:  # [S, num] bool
    limits = torch.tensor([min(p.top_k, num) or num for p in params], device=device)
    return torch.arange(num, device=device) < limits[:, None]


def _invert(
    weights: torch.Tensor,  # [S, W] float64
    uniforms: Sequence[float],
) -> list[int]:
    """The place in each row at which the share `uniform` of all its weight lies.

    The sum runs in float64, so that a difference in the last bit of the logits changes the outcome
    only with a probability of that size.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    targets = _column(uniforms, weights) * total
    places = torch.searchsorted(cumulative, targets, right=True)
    # Where rounding lifts a target to the total: the last place that has any weight.
    places = places.minimum(torch.searchsorted(cumulative, total)).clamp(max=weights.shape[-1] - 1)
    found: list[int] = places.squeeze(-1).tolist()
    return found


def _rows(tensor: torch.Tensor, chosen: list[int]) -> torch.Tensor:
    return tensor if len(chosen) == len(tensor) else tensor[chosen]


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:  # [S, 1] float64
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
