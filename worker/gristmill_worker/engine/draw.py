"""Draws one token of each row by inversion of its cumulative distribution, within its limits.

Rows without top_k, top_p and min_p look at the whole vocabulary. The others look at their likeliest
tokens only, and at more of them only if these do not suffice. Whether they do only the device knows
at first: where nobody may wait for it, many are looked at at once, and a row for which these do not
suffice stays undecided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from gristmill.types import SamplingParams
from gristmill_worker.engine.likeliest import likeliest
from gristmill_worker.upload import upload

#: How many of the likeliest tokens are looked at for the limits, in turn; then all of them.
_NUM_CANDIDATES = (64, 512, 4096)
#: How many at once, where nobody waits for the answer whether they suffice.
_NUM_AT_ONCE = 4096
#: In the place of a token of which that is not so.
UNDECIDED = -1
#: Below this a temperature is as good as zero, and dividing by it would overflow.
_LOWEST_TEMPERATURE = 1e-6
#: Numbers that are worked on at once: on a CPU few enough for its caches, and many enough that
#: threads seldom wait for each other; on a GPU few enough for its memory (each takes up to 70
#: bytes).
_NUMBERS_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 22}


class Draw(NamedTuple):  # as Scheduled
    """One token is to be drawn from row `row_idx` of the logits; `uniform`, in [0, 1), decides."""

    row_idx: int
    params: SamplingParams
    uniform: float

    @property
    def is_limited(self) -> bool:
        return self.params.top_k > 0 or self.params.top_p < 1.0 or self.params.min_p > 0


def draw(
    logits: torch.Tensor,  # [S, V] float32
    draws: Sequence[Draw],
    *,
    may_wait: bool = True,
) -> tuple[list[int], torch.Tensor]:  # [len(draws)] int64
    """One token id for each of `draws`, and the rows of the logits that they are of, in the same
    order. Without `may_wait` some may be UNDECIDED, and nothing is read from the device."""
    vocab_size = logits.shape[-1]
    drawn: list[Draw] = []
    token_ids: list[torch.Tensor] = []
    for some in _groups([d for d in draws if not d.is_limited], vocab_size, logits):
        places = _invert(_weights(_rows(logits, some), some), some)
        drawn += some
        token_ids.append(places.squeeze(-1))
    limited = [d for d in draws if d.is_limited]
    for num in (*_NUM_CANDIDATES, vocab_size) if may_wait else (_NUM_AT_ONCE,):
        left: list[Draw] = []
        # The logits themselves are only read; what is worked on are the candidates.
        for some in _groups(limited, num, logits):
            found, suffices = _draw_limited(logits, some, num)
            if not may_wait:
                found = torch.where(suffices, found, UNDECIDED)
            elif not all(is_decided := suffices.tolist()):
                left += [d for d, it in zip(some, is_decided, strict=True) if not it]
                some = [d for d, it in zip(some, is_decided, strict=True) if it]
                found = found[suffices]
            drawn += some
            token_ids.append(found)
        limited = left
    assert not limited, "all tokens of the vocabulary suffice"
    return [d.row_idx for d in drawn], torch.cat(token_ids)


def uniform(seed: int, num_generated: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (53 bits of BLAKE2b)."""
    text = f"{seed}/{num_generated}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _weights(
    logits: torch.Tensor,  # [S, W], among them the largest of each row
    draws: Sequence[Draw],
) -> torch.Tensor:  # [S, W] float64
    """exp(logit / temperature), up to a factor: the likeliest token has 1, so nothing overflows."""
    temperatures = [max(d.params.temperature, _LOWEST_TEMPERATURE) for d in draws]
    scaled = logits - logits.amax(dim=-1, keepdim=True)
    scaled /= _column(temperatures, logits).to(logits.dtype)
    return scaled.double().exp_()


def _draw_limited(
    logits: torch.Tensor, draws: Sequence[Draw], num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:  # [S] int64, [S] bool
    """Token ids, and for each whether it counts: the limits of a row may keep more tokens than the
    `num_candidates` likeliest.

    top_k keeps the k likeliest tokens; top_p the fewest of those whose probabilities (after top_k)
    add up to at least top_p, the likeliest one always; min_p those that have at least min_p of the
    likeliest one's probability. Tokens that are equally likely stay or go together.
    """
    vocab_size = logits.shape[-1]
    params = [d.params for d in draws]
    num = min(vocab_size, max(num_candidates, *(p.top_k + 1 for p in params)))
    candidates, token_ids = likeliest(_rows(logits, draws), num)
    weights = _weights(candidates, draws)
    within_k = _kept_by_top_k(params, num, logits.device)
    cumulative = (weights * within_k).cumsum(dim=-1)
    mass = _mass_of_all(logits, draws, otherwise=cumulative[:, -1:])
    share = _column([p.top_p if p.top_p < 1.0 else float("inf") for p in params], logits)
    within_p = torch.ones_like(within_k)
    within_p[:, 1:] = cumulative[:, :-1] < share * mass
    last = (within_k & within_p).sum(dim=-1, keepdim=True) - 1
    kept = candidates >= candidates.gather(-1, last)
    kept &= weights >= _column([p.min_p for p in params], logits)
    # In the order of token ids, so that two tokens which are nearly equally likely may change
    # places without changing the draw.
    token_ids, order = token_ids.sort(dim=-1)
    places = _invert((weights * kept).gather(-1, order), draws)
    suffices = ~kept[:, -1] if num < vocab_size else torch.ones_like(kept[:, -1])
    return token_ids.gather(-1, places).squeeze(-1), suffices


def _mass_of_all(
    logits: torch.Tensor, draws: Sequence[Draw], *, otherwise: torch.Tensor
) -> torch.Tensor:  # [S, 1] float64
    """The weight of the whole vocabulary for the rows whose top_p asks for a share of it."""
    place_of = {d.row_idx: i for i, d in enumerate(draws)}
    mass = otherwise.clone()
    asking = [d for d in draws if d.params.top_p < 1.0 and d.params.top_k == 0]
    for some in _groups(asking, logits.shape[-1], logits):
        of_some = _weights(_rows(logits, some), some).sum(dim=-1, keepdim=True)
        places = torch.tensor([place_of[d.row_idx] for d in some])
        mass.index_copy_(0, upload(places, mass.device), of_some)
    return mass


def _kept_by_top_k(
    params: Sequence[SamplingParams], num: int, device: torch.device
) -> torch.Tensor:  # [S, num] bool
    limits = upload(torch.tensor([min(p.top_k, num) or num for p in params]), device)
    return torch.arange(num, device=device) < limits[:, None]


def _invert(
    weights: torch.Tensor,  # [S, W] float64
    draws: Sequence[Draw],
) -> torch.Tensor:  # [S, 1] int64
    """The place in each row at which the share `uniform` of all its weight lies.

    The sum runs in float64, so that a difference in the last bit of the logits changes the outcome
    only with a probability of that size.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    targets = _column([d.uniform for d in draws], weights) * total
    places = torch.searchsorted(cumulative, targets, right=True)
    # Where rounding lifts a target to the total: the last place that has any weight.
    places = places.minimum(torch.searchsorted(cumulative, total))
    return places.clamp(max=weights.shape[-1] - 1)


def _rows(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The rows of `draws`, without a copy where they follow each other."""
    row_idx = [d.row_idx for d in draws]
    first = row_idx[0]
    if row_idx == list(range(first, first + len(row_idx))):
        return logits[first : first + len(row_idx)]
    return logits.index_select(0, upload(torch.tensor(row_idx), logits.device))


def _groups(draws: Sequence[Draw], width: int, logits: torch.Tensor) -> Iterator[Sequence[Draw]]:
    """`draws` in groups that work on rows of `width` numbers at once."""
    at_once = max(1, _NUMBERS_AT_ONCE.get(logits.device.type, 1 << 20) // width)
    for begin in range(0, len(draws), at_once):
        yield draws[begin : begin + at_once]


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:  # [S, 1] float64
    return upload(torch.tensor(values, dtype=torch.float64), like.device)[:, None]
