"""The tensors behind the slots: keys and values of every attention call of the model.

    slot = block_table[position // block_size] * block_size + position % block_size

    keys[layer]    [num_blocks * block_size, num_kv_heads, k_dim]
    values[layer]  [num_blocks * block_size, num_kv_heads, v_dim]

Layers that share keys and values (LayerSpec.shares) share the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gristmill_worker.models.probe import LayerSpec


class KVCache:
    """Memory is taken at once but touched only as Blocks are used for the first time."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = tuple(layers)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        num_slots = num_blocks * block_size
        for layer in self.layers:
            if layer.shares is not None:
                self.keys.append(self.keys[layer.shares])
                self.values.append(self.values[layer.shares])
                continue
            for tensors, dim in ((self.keys, layer.k_dim), (self.values, layer.v_dim)):
                shape = (num_slots, layer.num_kv_heads, dim)
                tensors.append(torch.empty(shape, dtype=dtype, device=device))

    def write(
        self,
        layer: int,
        key: torch.Tensor,  # [T, num_kv_heads, k_dim]
        value: torch.Tensor,  # [T, num_kv_heads, v_dim]
        slot_mapping: torch.Tensor,  # [T] int64
    ) -> None:
        if self.layers[layer].shares is None:
            self.keys[layer].index_copy_(0, slot_mapping, key)
            self.values[layer].index_copy_(0, slot_mapping, value)
