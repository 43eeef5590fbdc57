"""The compiled kernel against the reference, and its promise about bits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, LayerCache
from gristmill_worker.attention.choose import choose_attention
from gristmill_worker.attention.compiled import CompiledAttention, load_kernel
from gristmill_worker.attention.reference import ReferenceAttention

NUM_BLOCKS = 64
RULES = {
    "plain": {},
    "window": {"sliding_window": 8},
    "long window": {"sliding_window": 37},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "all": {"sliding_window": 37, "softcap": 3.0, "sinks": True},
}
#: num_heads, num_kv_heads, k_dim, v_dim, block_size
SHAPES = [(9, 3, 64, 64, 16), (4, 4, 16, 16, 16), (4, 2, 24, 20, 32), (8, 1, 128, 128, 16)]


def make_cache(shape: tuple[int, ...]) -> LayerCache:
    _, num_kv_heads, k_dim, v_dim, block_size = shape
    # What was never written is NaN, as uninitialised memory may be.
    keys = torch.full((NUM_BLOCKS, num_kv_heads, k_dim, block_size), float("nan"))
    values = torch.full((NUM_BLOCKS, num_kv_heads, block_size, v_dim), float("nan"))
    return LayerCache(keys, values, is_written=True)


def metadata(spans: list[tuple[int, int, int]], tables: torch.Tensor, block_size: int) -> Any:
    slots = []
    for (_, num_tokens, context_len), table in zip(spans, tables.tolist(), strict=True):
        for position in range(context_len - num_tokens, context_len):
            slots.append(table[position // block_size] * block_size + position % block_size)
    return AttentionMetadata(torch.tensor(spans), tables, torch.tensor(slots))


def steps(lengths: list[int], chunks: list[int]) -> list[list[tuple[int, int, int]]]:
    """Spans of packed steps that compute `lengths` tokens in chunks of the given sizes."""
    done, plan, n = [0] * len(lengths), [], 0
    while done != lengths:
        spans, at = [], 0
        for i, length in enumerate(lengths):
            num = min(chunks[(n + i) % len(chunks)], length - done[i])
            done[i] += num
            spans.append((at, num, done[i]))
            at += num
        plan.append(spans)
        n += 1
    return plan


def attend(
    backend: Any,
    shape: tuple[int, ...],
    rules: AttentionRules,
    lengths: list[int],
    chunks: list[int],
    seed: int = 0,
) -> list[torch.Tensor]:
    """Outputs [length, num_heads, v_dim] of each sequence, computed in packed steps."""
    num_heads, num_kv_heads, k_dim, v_dim, block_size = shape
    inputs = []
    for i, length in enumerate(lengths):
        make = functools.partial(torch.randn, generator=torch.Generator().manual_seed(seed + i))
        inputs.append(
            (
                make(num_heads, length, k_dim),
                make(num_kv_heads, length, k_dim),
                make(num_kv_heads, length, v_dim),
            )
        )
    cache = make_cache(shape)
    width = -(-max(lengths) // block_size)
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(9))
    tables = order[: width * len(lengths)].view(len(lengths), width).int().contiguous()
    outputs: list[list[torch.Tensor]] = [[] for _ in lengths]
    for spans in steps(lengths, chunks):
        active = [(i, span) for i, span in enumerate(spans) if span[1]]
        parts = []
        for which in range(3):
            pieces = [inputs[i][which][:, end - num : end] for i, (_, num, end) in active]
            parts.append(torch.cat(pieces, dim=1).transpose(0, 1))  # strided, as models give it
        step = metadata([span for _, span in active], tables[[i for i, _ in active]], block_size)
        out = backend.forward(*parts, cache, step, rules)
        for i, (start, num, _) in active:
            outputs[i].append(out[start : start + num].clone())
    return [torch.cat(pieces) for pieces in outputs]


def make_rules(shape: tuple[int, ...], name: str) -> AttentionRules:
    asked = dict(RULES[name])
    if asked.pop("sinks", False):
        asked["sinks"] = torch.linspace(-2.0, 2.0, shape[0])
    return AttentionRules(scale=0.13, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_equals_the_reference(
    compiled: CompiledAttention, shape: tuple[int, ...], rules: str
) -> None:
    lengths, asked = [1, 16, 17, 33, 100], make_rules(shape, rules)

    ours = attend(compiled, shape, asked, lengths, [7, 1, 40])
    theirs = attend(ReferenceAttention(), shape, asked, lengths, [7, 1, 40])

    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("rules", ["plain", "all"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_depend_on_neither_company_nor_chunks(
    compiled: CompiledAttention, shape: tuple[int, ...], rules: str
) -> None:
    asked = make_rules(shape, rules)
    alone = [attend(compiled, shape, asked, [100], [1], seed=i)[0] for i in range(3)]

    for chunks in ([1], [100], [16], [3, 50, 7], [33, 1]):
        together = attend(compiled, shape, asked, [100, 100, 100], chunks)
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one, other), chunks


def test_the_kernel_is_built_once_and_chosen_where_it_can_be(tmp_path: Path) -> None:
    if load_kernel(tmp_path) is None:
        pytest.skip("needs a C compiler")
    [built] = tmp_path.glob("*.so")
    changed = built.stat().st_mtime_ns

    def chosen(block_size: int, dtype: torch.dtype = torch.float32) -> type:
        device = torch.device("cpu")
        backend = choose_attention(
            dtype=dtype, device=device, block_size=block_size, cache_dir=tmp_path
        )
        return type(backend)

    assert chosen(16) is CompiledAttention and chosen(32) is CompiledAttention
    assert chosen(4) is ReferenceAttention  # blocks smaller than a tile
    assert chosen(16, torch.bfloat16) is ReferenceAttention
    assert built.stat().st_mtime_ns == changed


def test_without_a_compiler_the_reference_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")

    backend = choose_attention(
        dtype=torch.float32, device=torch.device("cpu"), block_size=16, cache_dir=tmp_path
    )

    assert isinstance(backend, ReferenceAttention)


def test_a_compiler_that_fails_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")

    assert load_kernel(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
