"""Attention of whole prompts that are packed one after the other: no cache, no padding.

For models that read a text at once. Each prompt is attended to by a call of its own, so that its
bits do not depend on who is packed beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from gristmill_worker.attention.base import AttentionRules


class PackedPrompts:
    """Where each prompt of a step lies: `lengths` are the numbers of their tokens."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._bounds = list(pairwise(accumulate(lengths, initial=0)))

    def attend(
        self,
        query: torch.Tensor,  # [1, num_heads, T, k_dim]
        key: torch.Tensor,  # [1, num_kv_heads, T, k_dim]
        value: torch.Tensor,  # [1, num_kv_heads, T, v_dim]
        rules: AttentionRules,
        *,
        is_causal: bool,
    ) -> torch.Tensor:  # [1, T, num_heads, v_dim]
        """Attention of each prompt over itself."""
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        for begin, end in self._bounds:
            mixed = _attend(
                query[:, :, begin:end],
                key[:, :, begin:end],
                value[:, :, begin:end],
                rules,
                is_causal=is_causal,
            )
            out[:, begin:end] = mixed.transpose(1, 2)
        return out


def _attend(
    query: torch.Tensor,  # [1, num_heads, L, k_dim]
    key: torch.Tensor,  # [1, num_kv_heads, L, k_dim]
    value: torch.Tensor,  # [1, num_kv_heads, L, v_dim]
    rules: AttentionRules,
    *,
    is_causal: bool,
) -> torch.Tensor:  # [1, num_heads, L, v_dim]
    mask = _mask(query.shape[2], rules.sliding_window, is_causal=is_causal, device=query.device)
    if rules.softcap is None:
        mixed: torch.Tensor = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=rules.scale, enable_gqa=True
        )
        return mixed
    group = query.shape[1] // key.shape[1]
    keys, values = (t.repeat_interleave(group, dim=1).float() for t in (key, value))
    scores = query.float() @ keys.transpose(2, 3) * rules.scale
    scores = rules.softcap * torch.tanh(scores / rules.softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ values).to(query.dtype)


def _mask(
    length: int, window: int | None, *, is_causal: bool, device: torch.device
) -> torch.Tensor | None:
    """Who sees whom; None when all see all. A window counts the token itself, to either side."""
    if not is_causal and (window is None or window >= length):
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position
    seen = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        seen &= distance.abs() < window
    return seen
