"""The tensors behind the slots: keys and values of every attention call of the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gristmill_worker.attention.base import LayerCache
from gristmill_worker.models.probe import LayerSpec


class KVCache:
    """One LayerCache for each attention call, in the order of the calls.

    Memory is taken at once but touched only as Blocks are used for the first time.
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
        self.layers: list[LayerCache] = []
        for layer in layers:
            if layer.shares is not None:
                source = self.layers[layer.shares]
                self.layers.append(LayerCache(source.keys, source.values, is_written=False))
                continue
            keys = (num_blocks, layer.num_kv_heads, layer.k_dim, block_size)
            values = (num_blocks, layer.num_kv_heads, block_size, layer.v_dim)
            self.layers.append(
                LayerCache(
                    torch.empty(keys, dtype=dtype, device=device),
                    torch.empty(values, dtype=dtype, device=device),
                    is_written=True,
                )
            )
