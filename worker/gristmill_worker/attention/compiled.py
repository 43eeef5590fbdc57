"""Attention by kernel.c: in place over the Blocks, at memory speed, and the same bits always.

The kernel is built at first use. Where there is no compiler, or the cache is not float32 on a CPU,
`load_kernel` and `supports` say so and the reference is used.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, LayerCache
from gristmill_worker.native import load_native

_SOURCE = Path(__file__).with_name("kernel.c")
#: Keys of one step of the kernel (TILE in kernel.c).
_TILE = 16


class _Call(ctypes.Structure):
    """`Call` in kernel.c, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_spans", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("k_dim", "v_dim", "block_size", "max_blocks")),
        *((f"query_{axis}_stride", ctypes.c_int64) for axis in ("token", "head")),
        *((f"key_{axis}_stride", ctypes.c_int64) for axis in ("token", "head")),
        *((f"value_{axis}_stride", ctypes.c_int64) for axis in ("token", "head")),
        ("num_tokens", ctypes.c_int64),
        ("sliding_window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


def load_kernel(cache_dir: Path) -> ctypes.CDLL | None:
    """The kernel, built if need be; None where there is no C compiler that can build it."""
    return load_native(_SOURCE, cache_dir)


class CompiledAttention:
    """See AttentionBackend. Supports grouped queries, windows, soft caps and sinks."""

    def __init__(self, kernel: ctypes.CDLL) -> None:
        self._kernel = kernel

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
        call = _Call(
            num_spans=len(metadata.spans),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            k_dim=k_dim,
            v_dim=v_dim,
            block_size=cache.block_size,
            max_blocks=metadata.block_tables.shape[1],
            query_token_stride=query.stride(0),
            query_head_stride=query.stride(1),
            key_token_stride=key.stride(0),
            key_head_stride=key.stride(1),
            value_token_stride=value.stride(0),
            value_head_stride=value.stride(1),
            num_tokens=num_tokens,
            sliding_window=rules.sliding_window or 0,
            scale=rules.scale,
            softcap=rules.softcap or 0.0,
        )
        out = query.new_empty(num_tokens, num_heads, v_dim)
        self._kernel.gristmill_attend(
            ctypes.byref(call),
            _address(query),
            _address(key),
            _address(value),
            _address(metadata.slot_mapping if cache.is_written else None),
            _address(cache.keys),
            _address(cache.values),
            _address(sinks),
            _address(metadata.spans),
            _address(metadata.block_tables),
            _address(out),
        )
        return out


def _address(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
