"""Chooses the fastest attention that a machine has, and tries it against the oracle first."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from gristmill_worker.attention.base import AttentionBackend, AttentionRules, LayerCache
from gristmill_worker.attention.compiled import CompiledAttention, load_kernel
from gristmill_worker.attention.decode import Decode, GatherDecode
from gristmill_worker.attention.paged import PagedAttention
from gristmill_worker.attention.prefill import Prefill, SdpaPrefill, VarlenPrefill
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.attention.self_test import USUAL_SHAPES, HeadShape, make_cache, self_test

log = logging.getLogger(__name__)

Way = TypeVar("Way", Decode, Prefill)


def choose_attention(
    *,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    cache_dir: Path,
    shapes: Sequence[HeadShape] = USUAL_SHAPES,
) -> AttentionBackend:
    """The fastest backend that this machine has for such a KV cache."""
    if device.type != "cpu":
        return choose_paged(
            dtype=dtype,
            device=device,
            block_size=block_size,
            shapes=shapes,
            decodes=find_decodes(),
            prefills=find_prefills(),
        )
    if CompiledAttention.supports(dtype=dtype, device=device, block_size=block_size):
        kernel = load_kernel(cache_dir)
        if kernel is not None:
            return CompiledAttention(kernel)
    return ReferenceAttention()


def find_decodes() -> dict[str, Decode]:
    """What is installed for rows with one new token, the fastest first."""
    found: dict[str, Decode] = {}
    if importlib.util.find_spec("triton") is not None:
        from gristmill_worker.attention.triton_decode import TritonDecode

        found["triton"] = TritonDecode()
    found["gather"] = GatherDecode()
    return found


def find_prefills() -> dict[str, Prefill]:
    """What is installed for rows with several new tokens, the fastest first."""
    found: dict[str, Prefill] = {}
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # a torch from before it
        pass
    else:
        for name, paged in (("varlen paged", True), ("varlen", False)):
            if VarlenPrefill.has_arguments(varlen_attn, paged=paged):
                found[name] = VarlenPrefill(varlen_attn, paged=paged)
    found["sdpa"] = SdpaPrefill()
    return found


def choose_paged(
    *,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    shapes: Sequence[HeadShape],
    decodes: dict[str, Decode],
    prefills: dict[str, Prefill],
) -> AttentionBackend:
    """The first decode and the first prefill that equal the reference here; else the reference."""

    caches = [make_cache(shape, dtype, device, block_size) for shape in shapes]

    def first_right(ways: dict[str, Way], attention: Callable[[Way], PagedAttention]) -> str | None:
        for name, way in ways.items():
            if not all(way.supports(cache, AttentionRules(scale=1.0)) for cache in caches):
                reason: str | None = f"takes no {dtype} heads of such a size"
            else:
                reason = self_test(
                    attention(way), dtype=dtype, device=device, block_size=block_size, shapes=shapes
                )
            if reason is None:
                return name
            log.info("attention passed over name=%s reason=%s", name, reason)
        return None

    neither = _ToReference()
    prefill_name = first_right(prefills, lambda way: PagedAttention(neither, way))
    prefill: Prefill = neither if prefill_name is None else prefills[prefill_name]
    decode_name = first_right(decodes, lambda way: PagedAttention(way, prefill))
    decode: Decode = neither if decode_name is None else decodes[decode_name]
    log.info("attention chosen decode=%s prefill=%s", decode_name, prefill_name)
    if decode is neither and prefill is neither:
        return ReferenceAttention()
    return PagedAttention(decode, prefill)


class _ToReference:
    """A Decode and a Prefill that leave everything to the reference."""

    supports_graphs = False

    def supports(self, cache: LayerCache, rules: AttentionRules) -> bool:
        return False

    def attend(self, *args: object) -> torch.Tensor:
        raise AssertionError("it supports nothing")
