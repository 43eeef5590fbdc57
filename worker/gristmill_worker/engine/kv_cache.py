"""The tensors behind the slots: keys and values of every attention call of the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gristmill.errors import OutOfMemory
from gristmill_worker.attention.base import LayerCache
from gristmill_worker.models.loader import LoadedModel
from gristmill_worker.models.probe import LayerSpec


class KVCache:
    """One LayerCache for each attention call, in the order of the calls.

    Memory is taken at once but touched only as Blocks are used for the first time. There is one
    Block more than asked for, which is nobody's: rows that only pad a step write there. How the
    tensors lie in memory depends on the device, see LayerCache.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.scratch_block = num_blocks
        self.layers: list[LayerCache] = []
        for layer in layers:
            if layer.shares is not None:
                source = self.layers[layer.shares]
                self.layers.append(LayerCache(source.keys, source.values, is_written=False))
                continue
            self.layers.append(_allocate(layer, num_blocks + 1, block_size, dtype, device))

    def copy_blocks(self, copies: torch.Tensor) -> None:  # [C, 2] int64
        """Copy whole Blocks, (from, to) in each row. All are read before any is written."""
        sources, targets = copies.unbind(1)
        for layer in self.layers:
            if layer.is_written:
                layer.keys[targets] = layer.keys[sources]
                layer.values[targets] = layer.values[sources]


def _allocate(
    layer: LayerSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> LayerCache:
    num_heads, k_dim, v_dim = layer.num_kv_heads, layer.k_dim, layer.v_dim
    if device.type == "cpu":
        keys = torch.empty(num_blocks, num_heads, k_dim, block_size, dtype=dtype, device=device)
        values = torch.empty(num_blocks, num_heads, block_size, v_dim, dtype=dtype, device=device)
    else:
        pages = (num_blocks, block_size, num_heads)
        keys = torch.empty(*pages, k_dim, dtype=dtype, device=device).permute(0, 2, 3, 1)
        values = torch.empty(*pages, v_dim, dtype=dtype, device=device).permute(0, 2, 1, 3)
    return LayerCache(keys, values, is_written=True)


def num_blocks_in(
    kv_cache_bytes: int, loaded: LoadedModel, *, block_size: int, max_num_seqs: int
) -> int:
    """As many Blocks as fit, but no more than all rows at their longest could fill.

    Raises OutOfMemory when not even one fits.
    """
    block_bytes = max(1, loaded.kv_bytes_per_token * block_size)
    num_blocks = kv_cache_bytes // block_bytes
    if num_blocks < 1:
        raise OutOfMemory(
            f"{kv_cache_bytes:,} bytes are free for the KV cache, and one Block of "
            f"{block_size} tokens takes {block_bytes:,}. Free memory, or lower "
            "GRISTMILL_BLOCK_SIZE."
        )
    blocks_per_seq = -(-loaded.max_model_len // block_size)
    return min(num_blocks, max_num_seqs * blocks_per_seq)
