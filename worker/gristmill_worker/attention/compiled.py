"""Attention by kernel.c: in place over the Blocks, at memory speed, and the same bits always.

The kernel is built at first use. Where there is no compiler, or the cache is not float32 on a CPU,
`load_kernel` and `supports` say so and the reference is used.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, LayerCache
from gristmill_worker.native import Kernel, load_native

_SOURCE = Path(__file__).with_name("kernel.c")
#: Keys of one step of the kernel (TILE in kernel.c).
_TILE = 16


def load_kernel(cache_dir: Path) -> ctypes.CDLL | None:
    """The kernel, built if need be; None where there is no C compiler that can build it."""
    return load_native(_SOURCE, cache_dir)


class CompiledAttention:
    """See AttentionBackend. Supports grouped queries, windows, soft caps and sinks."""

    def __init__(self, kernel: ctypes.CDLL) -> None:
        self.kernel = Kernel(kernel, "gristmill_attend", "11P15q2f")
        #: Where its library lies, and others may.
        self.cache_dir = Path(kernel._name).parent

    @staticmethod
    def supports(*, dtype: torch.dtype, device: torch.device, block_size: int) -> bool:
        return dtype is torch.float32 and device.type == "cpu" and block_size % _TILE == 0

    def forward(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        key: torch.Tensor,  # [T, num_kv_heads, k_dim]
        value: torch.Tensor,  # [T, num_kv_heads, v_dim]
        cache: LayerCache,
        metadata: AttentionMetadata,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        assert cache.block_size % _TILE == 0, f"blocks of {cache.block_size} tokens: see supports()"
        query, key, value = (
            tensor if tensor.stride(2) == 1 else tensor.contiguous()
            for tensor in (query, key, value)
        )
        sinks = None if rules.sinks is None else rules.sinks.float().contiguous()
        num_tokens, num_heads, k_dim = query.shape
        num_kv_heads, v_dim = value.shape[1:]
        out = query.new_empty(num_tokens, num_heads, v_dim)
        self.kernel(
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            metadata.slot_mapping.data_ptr() if cache.is_written else 0,
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
            metadata.spans.data_ptr(),
            metadata.block_tables.data_ptr(),
            0,  # no token is skipped
            out.data_ptr(),
            len(metadata.spans),
            num_heads,
            num_kv_heads,
            k_dim,
            v_dim,
            cache.block_size,
            metadata.block_tables.shape[1],
            *query.stride()[:2],
            *key.stride()[:2],
            *value.stride()[:2],
            num_tokens,
            rules.sliding_window or 0,
            rules.scale,
            rules.softcap or 0.0,
        )
        return out
