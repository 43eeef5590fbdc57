"""Each way of attention on the GPU against the reference, and how fast it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from limits import bytes_per_s, flops, seconds, show

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, LayerCache
from gristmill_worker.attention.choose import choose_attention, find_decodes, find_prefills
from gristmill_worker.attention.paged import PagedAttention
from gristmill_worker.attention.prefill import SdpaPrefill, VarlenPrefill
from gristmill_worker.attention.self_test import HeadShape, self_test

pytestmark = pytest.mark.gpu

SHAPES = [
    HeadShape(9, 3, 64, 64),
    HeadShape(32, 8, 128, 128),
    HeadShape(8, 1, 256, 256),
    HeadShape(16, 16, 192, 128),
    HeadShape(12, 12, 80, 80),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("decode", find_decodes())
def test_decode_equals_the_reference(
    device: torch.device, decode: str, shape: HeadShape, dtype: torch.dtype
) -> None:
    backend = PagedAttention(find_decodes()[decode], SdpaPrefill())

    reason = self_test(backend, dtype=dtype, device=device, block_size=16, shapes=[shape])

    assert reason is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("prefill", ["varlen", "sdpa"])
def test_prefill_equals_the_reference(
    device: torch.device, prefill: str, shape: HeadShape, dtype: torch.dtype
) -> None:
    if prefill not in find_prefills():
        pytest.skip("this torch has no varlen attention with windows and grouped queries")
    backend = PagedAttention(find_decodes()["gather"], find_prefills()[prefill])

    reason = self_test(backend, dtype=dtype, device=device, block_size=16, shapes=[shape])

    assert reason is None


def test_the_fast_ways_are_chosen(device: torch.device, tmp_path: Any) -> None:
    """A CUDA build of torch brings triton and flash attention."""
    chosen = choose_attention(
        dtype=torch.bfloat16, device=device, block_size=16, cache_dir=tmp_path
    )

    assert isinstance(chosen, PagedAttention)
    assert chosen.supports_graphs
    assert isinstance(chosen.prefill, VarlenPrefill)


def _cache(shape: HeadShape, num_blocks: int, block_size: int, device: torch.device) -> LayerCache:
    pages = (num_blocks, block_size, shape.num_kv_heads)
    keys = torch.randn(*pages, shape.k_dim, device=device, dtype=torch.bfloat16)
    values = torch.randn(*pages, shape.v_dim, device=device, dtype=torch.bfloat16)
    return LayerCache(keys.permute(0, 2, 3, 1), values.permute(0, 2, 1, 3), is_written=True)


def _step(
    shape: HeadShape, num_rows: int, num_tokens: int, context_len: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, LayerCache, AttentionMetadata]:
    block_size = 16
    width = -(-context_len // block_size)
    cache = _cache(shape, num_rows * width, block_size, device)
    order = torch.randperm(num_rows * width)
    tables = order.view(num_rows, width)
    positions = torch.arange(context_len - num_tokens, context_len)
    slots = tables[:, positions // block_size] * block_size + positions % block_size
    spans = [(n * num_tokens, num_tokens, context_len) for n in range(num_rows)]
    metadata = AttentionMetadata(
        spans=torch.tensor(spans),
        block_tables=tables.int().to(device),
        slot_mapping=slots.flatten().to(device),
        context_lens=torch.full((num_rows,), context_len, dtype=torch.int32, device=device),
    )
    query, key, value = (
        torch.randn(num_rows * num_tokens, heads, dim, device=device, dtype=torch.bfloat16)
        for heads, dim in (
            (shape.num_heads, shape.k_dim),
            (shape.num_kv_heads, shape.k_dim),
            (shape.num_kv_heads, shape.v_dim),
        )
    )
    return query, key, value, cache, metadata


@pytest.mark.parametrize(
    ("num_rows", "context_len"), [(8, 8192), (64, 512), (64, 4096), (256, 2048)]
)
def test_decode_reads_the_cache_at_the_speed_of_memory(
    device: torch.device, num_rows: int, context_len: int
) -> None:
    shape = HeadShape(32, 8, 128, 128)
    step = _step(shape, num_rows, 1, context_len, device)
    limit = bytes_per_s(device)
    num_bytes = num_rows * context_len * shape.num_kv_heads * (shape.k_dim + shape.v_dim) * 2

    for name, decode in find_decodes().items():
        backend = PagedAttention(decode, SdpaPrefill())
        assert backend.forward(*step, AttentionRules(scale=0.09)).isfinite().all()
        took = seconds(lambda: backend.forward(*step, AttentionRules(scale=0.09)))  # noqa: B023
        show(f"{name}, {num_rows} x {context_len}", num_bytes / took, limit, "GB/s")


@pytest.mark.parametrize("cached", [0, 4096])
def test_prefill_computes_at_the_speed_of_the_matrix_units(
    device: torch.device, cached: int
) -> None:
    shape = HeadShape(32, 8, 128, 128)
    num_rows, num_tokens = 4, 2048
    step = _step(shape, num_rows, num_tokens, cached + num_tokens, device)
    limit = flops(device, torch.bfloat16)
    num_seen = num_tokens * cached + num_tokens * (num_tokens + 1) // 2
    num_flops = 2 * num_rows * num_seen * shape.num_heads * (shape.k_dim + shape.v_dim)

    for name, prefill in find_prefills().items():
        backend = PagedAttention(find_decodes()["gather"], prefill)
        try:
            assert backend.forward(*step, AttentionRules(scale=0.09)).isfinite().all()
            took = seconds(lambda: backend.forward(*step, AttentionRules(scale=0.09)))  # noqa: B023
        except RuntimeError as error:  # block tables need FlashAttention 3
            print(f"\n{name}: {str(error).splitlines()[0]}", end="")
            continue
        show(f"{name}, {cached} cached", num_flops / took, limit, "TFLOP/s")
