"""The one seam in a transformers model: its attention calls come here.

transformers looks the function up by name in its AttentionInterface. The name is *not* registered
as a mask function: for an unknown name transformers builds no mask at all, and causality, windows
and the borders of packed Sequences are ours alone (attention/base.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from gristmill_worker.attention.base import AttentionRules

#: What a model is loaded with as `attn_implementation`. Substrings such as "flash" or "sdpa"
#: would switch on checks and downloads in transformers, so the name has none of them.
ATTENTION = "gristmill"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of an attention function, as transformers makes it (of this step's tokens only)."""

    module: torch.nn.Module
    query: torch.Tensor  # [1, num_heads, T, k_dim]
    key: torch.Tensor  # [1, num_kv_heads, T, k_dim]
    value: torch.Tensor  # [1, num_kv_heads, T, v_dim]
    attention_mask: torch.Tensor | None
    rules: AttentionRules
    extra: dict[str, Any]


class ForwardContext(Protocol):
    """Answers the attention calls of one forward pass, in their order."""

    def attend(self, call: AttentionCall) -> torch.Tensor:  # [1, T, num_heads, v_dim]
        ...


# The only global state: transformers gives an attention function no other way to its step.
_current: ForwardContext | None = None


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Within the block, attention calls go to `context`. One engine, one thread, no nesting."""
    global _current
    assert _current is None, "a forward pass is under way already"
    _current = context
    try:
        yield
    finally:
        _current = None


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    assert _current is not None, "a model was called outside of forward_context"
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    rules = AttentionRules(scale, sliding_window or None, softcap or None, s_aux)
    call = AttentionCall(module, query, key, value, attention_mask, rules, extra)
    return _current.attend(call), None


AttentionInterface.register(ATTENTION, attention)
