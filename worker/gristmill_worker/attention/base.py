"""What every attention backend does, what it is told of a step, and how the KV cache lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one attention call of the model.

    The shapes are the same everywhere; the strides are not. On a CPU the tensors are contiguous, so
    that one vector register takes the same component of several keys. On a GPU all of a token's
    keys lie side by side, [num_blocks, block_size, num_kv_heads, dim] in memory: a token is written
    and read in one piece. Calls that share keys have the same tensors, and only the first writes.
    """

    keys: torch.Tensor  # [num_blocks, num_kv_heads, k_dim, block_size]
    values: torch.Tensor  # [num_blocks, num_kv_heads, block_size, v_dim]
    is_written: bool

    @property
    def block_size(self) -> int:
        return self.values.shape[2]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """All that attention needs to know of a step, the same for every layer.

    Row n of `spans` is (start, num_tokens, context_len): the queries of the n-th Sequence are the
    packed rows [start, start + num_tokens), and they are the last tokens of a context of
    context_len tokens, which lies in the Blocks of row n of `block_tables`.
    """

    spans: torch.Tensor  # [S, 3] int64, on the CPU
    block_tables: torch.Tensor  # [S, max_blocks] int32, filled up with 0
    slot_mapping: torch.Tensor  # [T] int64: block * block_size + offset of each new token
    #: The last column of `spans` where the cache is, for kernels. [S] int32
    context_lens: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionRules:
    """What one attention call of a model asks for beyond causality."""

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # [num_heads]: one more logit in each head's softmax


class AttentionBackend(Protocol):
    """Causal attention of packed queries, each over its own Sequence's context only.

    The numbers of a row depend on its own position and context alone: not on who shares the step,
    nor on the chunk in which its token is computed.
    """

    def forward(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        key: torch.Tensor,  # [T, num_kv_heads, k_dim]
        value: torch.Tensor,  # [T, num_kv_heads, v_dim]
        cache: LayerCache,
        metadata: AttentionMetadata,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        """Write the new keys and values into the cache, then attend.

        The query at position p sees positions (p - sliding_window, p] of its Sequence.
        """
