"""Writing to and reading from the slots of a LayerCache in plain torch, whatever its strides."""

from __future__ import annotations

import torch

from gristmill_worker.attention.base import LayerCache

#: Tokens of context that one call copies, unless a single Sequence is longer: copies are counted
#: in when memory is shared out, and stay small beside the cache.
MAX_GATHERED_TOKENS = 1 << 16


def is_token_major(cache: LayerCache) -> bool:
    """Whether the keys of a token lie side by side, and the slots one behind the other."""
    return all(pages.is_contiguous() for pages in as_pages(cache))


def as_pages(cache: LayerCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Views [num_blocks, block_size, num_kv_heads, dim] of keys and values."""
    return cache.keys.permute(0, 3, 1, 2), cache.values.permute(0, 2, 1, 3)


def write(
    cache: LayerCache,
    key: torch.Tensor,  # [T, num_kv_heads, k_dim]
    value: torch.Tensor,  # [T, num_kv_heads, v_dim]
    slot_mapping: torch.Tensor,  # [T]
) -> None:
    """Put each token's keys and values into its slot."""
    for pages, new in zip(as_pages(cache), (key, value), strict=True):
        if pages.is_contiguous():
            pages.flatten(0, 1).index_copy_(0, slot_mapping, new)
        else:
            pages[slot_mapping // cache.block_size, slot_mapping % cache.block_size] = new


def read(
    cache: LayerCache,
    slots: torch.Tensor,  # [...] int64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies [..., num_kv_heads, dim] of the keys and values in these slots."""
    blocks, offsets = slots // cache.block_size, slots % cache.block_size
    keys, values = as_pages(cache)
    return keys[blocks, offsets], values[blocks, offsets]
