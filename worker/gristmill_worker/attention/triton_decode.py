"""Attention of rows with one new token each, by a Triton kernel in place over the Blocks.

One program answers the query heads that share one key head of one Sequence. It walks over the
context in tiles and keeps a running softmax, so a row's floats depend on its own context alone.
Import this module only where `triton` is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gristmill_worker.attention.base import AttentionRules, LayerCache
from gristmill_worker.attention.decode import DecodeRows

#: Numbers of a tile of keys, padded; what fits into the registers of one program.
_TILE_NUMEL = 8192
#: A tensor core multiplies no fewer rows.
_MIN_ROWS = 16
_LOG2_E = 1.4426950408889634


class TritonDecode:
    """See Decode. Supports grouped queries, windows, soft caps and sinks."""

    supports_graphs = True
    _MAX_DIM = 512

    def supports(self, cache: LayerCache, rules: AttentionRules) -> bool:
        return max(cache.keys.shape[2], cache.values.shape[3]) <= self._MAX_DIM

    def attend(
        self,
        query: torch.Tensor,  # [N, num_heads, k_dim]
        cache: LayerCache,
        rows: DecodeRows,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [N, num_heads, v_dim]
        num_rows, num_heads, k_dim = query.shape
        num_kv_heads, v_dim = cache.values.shape[1], cache.values.shape[3]
        group = num_heads // num_kv_heads
        padded_dims = (triton.next_power_of_2(max(dim, 16)) for dim in (k_dim, v_dim))
        padded_k_dim, padded_v_dim = padded_dims
        tile = max(16, min(128, _TILE_NUMEL // max(padded_k_dim, padded_v_dim)))
        out = query.new_empty(num_rows, num_heads, v_dim)
        _decode_kernel[(num_rows, num_kv_heads)](
            query,
            cache.keys,
            cache.values,
            rows.block_tables,
            rows.context_lens,
            query if rules.sinks is None else rules.sinks,
            out,
            rules.scale * _LOG2_E,
            rules.softcap or 0.0,
            rules.sliding_window or 0,
            query.stride(0),
            query.stride(1),
            query.stride(2),
            cache.keys.stride(0),
            cache.keys.stride(1),
            cache.keys.stride(2),
            cache.keys.stride(3),
            cache.values.stride(0),
            cache.values.stride(1),
            cache.values.stride(2),
            cache.values.stride(3),
            rows.block_tables.stride(0),
            BLOCK_SIZE=cache.block_size,
            GROUP=group,
            GROUP_PADDED=max(_MIN_ROWS, triton.next_power_of_2(group)),
            K_DIM=k_dim,
            K_PADDED=padded_k_dim,
            V_DIM=v_dim,
            V_PADDED=padded_v_dim,
            TILE=tile,
            HAS_SOFTCAP=rules.softcap is not None,
            HAS_WINDOW=rules.sliding_window is not None,
            HAS_SINKS=rules.sinks is not None,
            num_warps=4,
        )
        return out


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _decode_kernel(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    block_tables,
    context_lens,
    sinks,
    out,
    scale_log2,
    softcap,
    window,
    query_row,
    query_head,
    query_dim,
    key_block,
    key_head,
    key_dim,
    key_slot,
    value_block,
    value_head,
    value_slot,
    value_dim,
    table_row,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    K_DIM: tl.constexpr,
    K_PADDED: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    row, kv_head = tl.program_id(0), tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    context_len = tl.load(context_lens + row)
    member = tl.arange(0, GROUP_PADDED)
    is_member = member < GROUP
    head = kv_head * GROUP + member
    k_axis, v_axis = tl.arange(0, K_PADDED), tl.arange(0, V_PADDED)
    q = tl.load(
        query + row * query_row + head[:, None] * query_head + k_axis[None] * query_dim,
        mask=is_member[:, None] & (k_axis[None] < K_DIM),
        other=0.0,
    )
    # Scores are kept in units of log2(e), so that the softmax needs exp2 only.
    if HAS_SINKS:
        largest = tl.load(sinks + head, mask=is_member, other=0.0).to(tl.float32) * 1.442695040889
        total = tl.full([GROUP_PADDED], 1.0, tl.float32)
    else:
        largest = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PADDED], tl.float32)
    mixed = tl.zeros([GROUP_PADDED, V_PADDED], tl.float32)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(context_len - window, 0)
    # Tiles begin at multiples of TILE, so each holds a key that is seen: `largest` gets finite.
    for begin in range(first // TILE * TILE, context_len, TILE):
        position = begin + tl.arange(0, TILE)
        is_seen = (position < context_len) & (position >= first)
        block = tl.load(
            block_tables + row * table_row + position // BLOCK_SIZE, mask=is_seen, other=0
        ).to(tl.int64)
        slot = position % BLOCK_SIZE
        k = tl.load(
            keys
            + (block * key_block + kv_head * key_head + slot * key_slot)[None]
            + k_axis[:, None] * key_dim,
            mask=is_seen[None] & (k_axis[:, None] < K_DIM),
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        if HAS_SOFTCAP:  # softcap * tanh(score / softcap), through exp2
            grown = tl.exp2(-2.0 * tl.abs(scores) / softcap)
            tanh = (1.0 - grown) / (1.0 + grown)
            scores = tl.where(scores < 0, -tanh, tanh) * (softcap * 1.442695040889)
        scores = tl.where(is_seen[None], scores, float("-inf"))
        newest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - newest[:, None])
        faded = tl.exp2(largest - newest)
        total = total * faded + tl.sum(weights, 1)
        v = tl.load(
            values
            + (block * value_block + kv_head * value_head + slot * value_slot)[:, None]
            + v_axis[None] * value_dim,
            mask=is_seen[:, None] & (v_axis[None] < V_DIM),
            other=0.0,
        )
        mixed = mixed * faded[:, None]
        mixed += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = newest
    tl.store(
        out + (row * num_kv_heads * GROUP + head[:, None]).to(tl.int64) * V_DIM + v_axis[None],
        (mixed / total[:, None]).to(out.dtype.element_ty),
        mask=is_member[:, None] & (v_axis[None] < V_DIM),
    )
