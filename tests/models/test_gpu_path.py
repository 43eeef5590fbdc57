"""The attention of GPUs, by the same code on CPU tensors, against the reference."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from drive import make_engine, run
from fake_varlen import varlen_attn
from tiny import ARCHITECTURES, greedy_alone, greedy_job, prompts

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, LayerCache
from gristmill_worker.attention.choose import choose_paged, find_decodes, find_prefills
from gristmill_worker.attention.decode import GatherDecode
from gristmill_worker.attention.paged import PagedAttention
from gristmill_worker.attention.prefill import SdpaPrefill, VarlenPrefill
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.attention.self_test import HeadShape, self_test

CPU = torch.device("cpu")
#: Without a GPU, Triton's kernel can be run by its interpreter.
INTERPRETED = (
    importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
)
SHAPES = {
    "grouped": HeadShape(6, 2, 16, 16),
    "one key head": HeadShape(4, 1, 32, 32),
    "own values": HeadShape(4, 4, 24, 20),
}
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 9},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": True},
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
#: New tokens of four Sequences in each step: all new, mixed, decode alone, chunks, decode alone.
STEPS = [(1, 30, 17, 5), (1, 1, 20, 9), (1, 1, 1, 1), (33, 1, 2, 1), (1, 1, 1, 1)]


BACKENDS = {
    "gather, sdpa": lambda: PagedAttention(GatherDecode(), SdpaPrefill()),
    "whole tables, sdpa": lambda: PagedAttention(GatherDecode(by_length=False), SdpaPrefill()),
    "gather, varlen": lambda: PagedAttention(
        GatherDecode(), VarlenPrefill(varlen_attn, paged=False)
    ),
    "gather, varlen paged": lambda: PagedAttention(
        GatherDecode(), VarlenPrefill(varlen_attn, paged=True)
    ),
}


def make_cache(shape: HeadShape, dtype: torch.dtype, *, token_major: bool) -> LayerCache:
    sizes = (shape.num_kv_heads, 40, 8)
    if token_major:
        keys = torch.full((40, 8, sizes[0], shape.k_dim), float("nan"), dtype=dtype)
        values = torch.full((40, 8, sizes[0], shape.v_dim), float("nan"), dtype=dtype)
        return LayerCache(keys.permute(0, 2, 3, 1), values.permute(0, 2, 1, 3), is_written=True)
    keys = torch.full((40, sizes[0], shape.k_dim, 8), float("nan"), dtype=dtype)
    values = torch.full((40, sizes[0], 8, shape.v_dim), float("nan"), dtype=dtype)
    return LayerCache(keys, values, is_written=True)


def make_metadata(chunks: Sequence[int], lengths: Sequence[int], **more: Any) -> AttentionMetadata:
    tables = torch.randperm(40, generator=torch.Generator().manual_seed(2)).view(4, 10).int()
    spans, slots, start = [], [], 0
    for chunk, length, table in zip(chunks, lengths, tables.tolist(), strict=True):
        spans.append((start, chunk, length))
        slots += [table[p // 8] * 8 + p % 8 for p in range(length - chunk, length)]
        start += chunk
    return AttentionMetadata(torch.tensor(spans), tables, torch.tensor(slots), **more)


def largest_difference(
    backend: Any, shape: HeadShape, rules: AttentionRules, dtype: torch.dtype, *, token_major: bool
) -> float:
    ours = make_cache(shape, dtype, token_major=token_major)
    theirs = make_cache(shape, dtype, token_major=False)
    lengths, largest = [0] * 4, 0.0
    for n, chunks in enumerate(STEPS):
        lengths = [length + chunk for length, chunk in zip(lengths, chunks, strict=True)]
        generator = torch.Generator().manual_seed(n)
        q, k, v = (
            torch.randn(heads, sum(chunks), dim, generator=generator).to(dtype).transpose(0, 1)
            for heads, dim in (
                (shape.num_heads, shape.k_dim),
                (shape.num_kv_heads, shape.k_dim),
                (shape.num_kv_heads, shape.v_dim),
            )
        )
        step = make_metadata(chunks, lengths)
        found = backend.forward(q, k, v, ours, step, rules).float()
        expected = ReferenceAttention().forward(q, k, v, theirs, step, rules).float()
        assert found.isfinite().all()
        largest = max(largest, float((found - expected).abs().max()))
    return largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_way_equals_the_reference(
    backend: str, shape: str, rules: str, dtype: torch.dtype
) -> None:
    asked = dict(RULES[rules])
    if asked.pop("sinks", False):
        asked["sinks"] = torch.linspace(-2, 2, SHAPES[shape].num_heads)
    attention_rules = AttentionRules(scale=0.21, **asked)

    for token_major in (True, False):
        difference = largest_difference(
            BACKENDS[backend](), SHAPES[shape], attention_rules, dtype, token_major=token_major
        )
        assert difference <= TOLERANCE[dtype]


def test_rows_of_similar_length_share_a_call_and_none_is_padded_more_than_twice() -> None:
    lengths = [1, 1000, 3, 600, 2, 501, 499, 4]

    groups = GatherDecode()._groups(lengths)

    assert sorted(row for members, _ in groups for row in members) == list(range(8))
    for members, width in groups:
        assert width == max(lengths[row] for row in members)
        assert all(2 * lengths[row] >= width for row in members)
    assert len(GatherDecode()._groups([1 << 15] * 5)) == 3  # two of these fit into one copy


def test_portions_of_a_prefill_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill_worker.attention.paged.MAX_GATHERED_TOKENS", 20)
    rules = AttentionRules(scale=0.3)

    for name in ("gather, sdpa", "gather, varlen"):
        difference = largest_difference(
            BACKENDS[name](), SHAPES["grouped"], rules, torch.bfloat16, token_major=True
        )
        assert difference <= TOLERANCE[torch.bfloat16]


def test_older_varlen_functions_are_known_by_their_arguments() -> None:
    def without_window(query: Any, is_causal: bool = False, scale: float = 1.0) -> None: ...

    def without_pages(query: Any, scale: Any, window_size: Any, enable_gqa: Any) -> None: ...

    def verdicts(function: Any) -> list[bool]:
        return [VarlenPrefill.has_arguments(function, paged=paged) for paged in (False, True)]

    assert verdicts(varlen_attn) == [True, True]
    assert verdicts(without_window) == [False, False]
    assert verdicts(without_pages) == [True, False]


class Broken(GatherDecode):
    """Its scale is wrong."""

    def attend(self, query: Any, cache: Any, rows: Any, rules: Any) -> torch.Tensor:
        return super().attend(query * 1.5, cache, rows, rules)


class Raises(SdpaPrefill):
    def attend(self, *args: Any) -> torch.Tensor:
        raise NotImplementedError("no kernel for this device")


def test_what_differs_or_fails_is_passed_over_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = GatherDecode()
    with caplog.at_level(logging.INFO):
        chosen = choose_paged(
            dtype=torch.bfloat16,
            device=CPU,
            block_size=16,
            shapes=[HeadShape(4, 2, 16, 16)],
            decodes={"broken": Broken(), "gather": right},
            prefills={"raises": Raises(), "sdpa": SdpaPrefill()},
        )

    assert isinstance(chosen, PagedAttention) and chosen.decode is right
    assert "name=broken reason=differs from the reference" in caplog.text
    assert "name=raises reason=NotImplementedError: 'no kernel for this device'" in caplog.text
    assert "attention chosen decode=gather prefill=sdpa" in caplog.text


def test_with_nothing_that_works_the_reference_is_used() -> None:
    chosen = choose_paged(
        dtype=torch.float32,
        device=CPU,
        block_size=16,
        shapes=[HeadShape(4, 2, 16, 16)],
        decodes={"broken": Broken()},
        prefills={"raises": Raises()},
    )

    assert isinstance(chosen, ReferenceAttention)


def test_what_takes_no_such_heads_is_not_chosen_although_the_reference_stands_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    varlen = VarlenPrefill(varlen_attn, paged=False)
    for shape, dtype, expected in (
        (HeadShape(4, 2, 16, 16), torch.bfloat16, "varlen"),
        (HeadShape(4, 2, 24, 16), torch.bfloat16, "sdpa"),  # other values than keys, as MLA has
        (HeadShape(4, 2, 16, 16), torch.float32, "sdpa"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            choose_paged(
                dtype=dtype,
                device=CPU,
                block_size=16,
                shapes=[shape],
                decodes={"gather": GatherDecode()},
                prefills={"varlen": varlen, "sdpa": SdpaPrefill()},
            )
        assert f"prefill={expected}" in caplog.text


def test_this_torch_has_something_for_each_part() -> None:
    assert list(find_decodes())[-1] == "gather"
    assert list(find_prefills())[-1] == "sdpa"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_of_the_engine_are_those_of_the_model_alone(model_pair: Any, name: str) -> None:
    oracle, loaded = model_pair(name)
    rows = prompts([3, 9, 20, 33, 1, 16, 70])
    decode = find_decodes()["triton" if INTERPRETED else "gather"]
    attention = PagedAttention(decode, SdpaPrefill())
    engine = make_engine(loaded, attention=attention, num_blocks=96)

    finished = run(engine, [(str(i), greedy_job(row, 12)) for i, row in enumerate(rows)])

    for i, row in enumerate(rows):
        assert list(finished[str(i)].generated.token_ids) == greedy_alone(oracle, row, 12)


@pytest.mark.skipif(not INTERPRETED, reason="needs triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rules", [*RULES, "all"])
def test_the_triton_kernel_equals_the_reference(shape: str, rules: str) -> None:
    everything = {"sliding_window": 37, "softcap": 3.0, "sinks": True}
    asked = dict(everything if rules == "all" else RULES[rules])
    if asked.pop("sinks", False):
        asked["sinks"] = torch.linspace(-2, 2, SHAPES[shape].num_heads)
    backend = PagedAttention(find_decodes()["triton"], SdpaPrefill())

    for dtype in (torch.float32, torch.float16):  # its interpreter multiplies no bfloat16
        difference = largest_difference(
            backend, SHAPES[shape], AttentionRules(scale=0.21, **asked), dtype, token_major=True
        )
        assert difference <= (1e-5 if dtype is torch.float32 else 3e-3)


def test_the_self_test_sees_what_is_wrong() -> None:
    for backend, is_right in (
        (PagedAttention(GatherDecode(), SdpaPrefill()), True),
        (PagedAttention(Broken(), SdpaPrefill()), False),
        (PagedAttention(GatherDecode(), Raises()), False),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            reason = self_test(backend, dtype=dtype, device=CPU, block_size=16)
            assert (reason is None) == is_right
