"""Tries an attention backend against the reference on random tensors, before it is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill_worker.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionRules,
    LayerCache,
)
from gristmill_worker.attention.reference import ReferenceAttention

#: Largest difference from the reference, as a share of its largest number.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_NUM_TABLE_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The shape of one attention call of a model."""

    num_heads: int
    num_kv_heads: int
    k_dim: int
    v_dim: int


#: What is tried when the shapes of the model are not known: grouped queries, the usual head.
USUAL_SHAPES = (HeadShape(8, 2, 64, 64), HeadShape(4, 4, 128, 128))


@torch.inference_mode()
def self_test(
    backend: AttentionBackend,
    *,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    shapes: Sequence[HeadShape] = USUAL_SHAPES,
) -> str | None:
    """Why a backend cannot be used here; None when it equals the reference on random tensors."""
    for shape in shapes:
        sinks = torch.linspace(-1.0, 1.0, shape.num_heads, device=device)
        for rules in (
            AttentionRules(scale=shape.k_dim**-0.5),
            AttentionRules(scale=shape.k_dim**-0.5, sliding_window=2 * block_size + 3),
            AttentionRules(scale=shape.k_dim**-0.5, softcap=5.0, sinks=sinks),
        ):
            try:
                difference = _difference(backend, shape, rules, dtype, device, block_size)
            except Exception as error:  # whatever foreign code raises means that it cannot be used
                return f"{type(error).__name__}: {str(error)[:200]!r}"
            if not difference <= _TOLERANCE[dtype]:
                return f"differs from the reference by {difference:.1e} of the largest ({shape})"
    return None


def _difference(
    backend: AttentionBackend,
    shape: HeadShape,
    rules: AttentionRules,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
) -> float:
    """Three Sequences: all new, then a chunk beside two that decode, then all decode."""
    ours, theirs = (make_cache(shape, dtype, device, block_size) for _ in range(2))
    reference = ReferenceAttention()
    largest = difference = 0.0
    lengths = (1, block_size + 1, 5 * block_size)
    done = [0] * len(lengths)
    for step, chunks in enumerate((lengths, (1, 1, block_size - 1), (1, 1, 1))):
        done = [before + chunk for before, chunk in zip(done, chunks, strict=True)]
        metadata = _metadata(chunks, done, device, block_size)
        generator = torch.Generator().manual_seed(step)
        query, key, value = (
            torch.randn(heads, sum(chunks), dim, generator=generator)
            .to(device, dtype)
            .transpose(0, 1)  # strided, as models give it
            for heads, dim in (
                (shape.num_heads, shape.k_dim),
                (shape.num_kv_heads, shape.k_dim),
                (shape.num_kv_heads, shape.v_dim),
            )
        )
        expected = reference.forward(query, key, value, theirs, metadata, rules).float()
        found = backend.forward(query, key, value, ours, metadata, rules).float()
        apart = float((found - expected).abs().max())
        difference = max(difference, apart if apart == apart else float("inf"))
        largest = max(largest, float(expected.abs().max()))
    return difference / largest


def make_cache(
    shape: HeadShape, dtype: torch.dtype, device: torch.device, block_size: int
) -> LayerCache:
    """Token-major, and NaN where nothing has been written."""
    keys, values = (
        torch.full(
            (3 * _NUM_TABLE_BLOCKS, block_size, shape.num_kv_heads, dim),
            float("nan"),
            dtype=dtype,
            device=device,
        )
        for dim in (shape.k_dim, shape.v_dim)
    )
    return LayerCache(keys.permute(0, 2, 3, 1), values.permute(0, 2, 1, 3), is_written=True)


def _metadata(
    chunks: Sequence[int], context_lens: Sequence[int], device: torch.device, block_size: int
) -> AttentionMetadata:
    order = torch.randperm(3 * _NUM_TABLE_BLOCKS, generator=torch.Generator().manual_seed(1))
    tables = order.view(3, _NUM_TABLE_BLOCKS).int()
    spans, slots, start = [], [], 0
    for chunk, context_len, table in zip(chunks, context_lens, tables.tolist(), strict=True):
        spans.append((start, chunk, context_len))
        slots += [
            table[position // block_size] * block_size + position % block_size
            for position in range(context_len - chunk, context_len)
        ]
        start += chunk
    return AttentionMetadata(
        spans=torch.tensor(spans),
        block_tables=tables.to(device),
        slot_mapping=torch.tensor(slots).to(device),
        context_lens=torch.tensor(list(context_lens), dtype=torch.int32).to(device),
    )
