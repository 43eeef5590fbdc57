"""What every attention backend does, and what it is told of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Span:
    """The part of one Sequence in a packed step.

    Its queries are the packed rows [start, start + num_tokens); they are the last tokens of a
    context of `context_len` tokens, whose keys and values lie in the slots `context_slots`.
    """

    start: int
    num_tokens: int
    context_len: int
    context_slots: torch.Tensor  # [context_len] int64


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """All that attention needs to know of a step, the same for every layer."""

    spans: tuple[Span, ...]
    slot_mapping: torch.Tensor  # [T] int64: where the new keys and values go


@dataclass(frozen=True, slots=True)
class AttentionRules:
    """What one attention call of a model asks for beyond causality."""

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [num_heads]: one more logit in each head's softmax


class AttentionBackend(Protocol):
    """Causal attention of packed queries, each over its own Sequence's context only."""

    def forward(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        keys: torch.Tensor,  # [num_slots, num_kv_heads, k_dim]
        values: torch.Tensor,  # [num_slots, num_kv_heads, v_dim]
        metadata: AttentionMetadata,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        """The query at position p sees positions (p - sliding_window, p] of its Sequence."""
