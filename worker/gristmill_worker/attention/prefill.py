"""Attention of rows with several new tokens each, by what torch ships: varlen attention or SDPA."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from gristmill_worker.attention.base import AttentionRules, LayerCache
from gristmill_worker.attention.slots import as_pages, is_token_major, read
from gristmill_worker.upload import upload


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Sequences whose new tokens are packed one after the other, as queries and as keys.

    Span n is (num_tokens, context_len), on the CPU; cu_queries and cu_keys are their running sums
    from 0, as int32 where the cache is.
    """

    spans: list[tuple[int, int]]
    block_tables: torch.Tensor  # [N, max_blocks] int32
    context_lens: torch.Tensor  # [N] int32
    cu_queries: torch.Tensor  # [N + 1]
    cu_keys: torch.Tensor  # [N + 1]
    #: The slots of all contexts, one after the other; None when every context is new.
    slots: torch.Tensor | None  # [sum of context_lens] int64


def make_prefill_rows(
    spans: list[tuple[int, int]], block_tables: torch.Tensor, block_size: int
) -> PrefillRows:
    """What all attention calls of a step share, computed once."""
    device = block_tables.device
    num_tokens, context_lens = zip(*spans, strict=True)
    sums = [list(itertools.accumulate(lens, initial=0)) for lens in (num_tokens, context_lens)]
    cu_queries, cu_keys = upload(torch.tensor(sums, dtype=torch.int32), device)
    lengths = upload(torch.tensor(context_lens), device)
    slots = None
    if num_tokens != context_lens:
        total = sums[1][-1]  # known here, so that the device need not be asked for it
        seq_idx = torch.repeat_interleave(lengths, output_size=total)
        positions = torch.arange(total, device=device) - cu_keys.long()[seq_idx]
        blocks = block_tables[seq_idx, positions // block_size].long()
        slots = blocks * block_size + positions % block_size
    return PrefillRows(spans, block_tables, lengths.int(), cu_queries, cu_keys, slots)


class Prefill(Protocol):
    """How a PagedAttention answers the rows with several new tokens."""

    def supports(self, cache: LayerCache, rules: AttentionRules) -> bool:
        """Else the reference answers."""

    def attend(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        key: torch.Tensor,  # [T, num_kv_heads, k_dim]
        value: torch.Tensor,  # [T, num_kv_heads, v_dim]
        cache: LayerCache,
        rows: PrefillRows,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        """The new keys and values are in the cache already."""


class SdpaPrefill:
    """See Prefill. One call of SDPA for each Sequence: any dtype, any head size."""

    def supports(self, cache: LayerCache, rules: AttentionRules) -> bool:
        return rules.softcap is None and rules.sinks is None

    def attend(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        key: torch.Tensor,  # [T, num_kv_heads, k_dim]
        value: torch.Tensor,  # [T, num_kv_heads, v_dim]
        cache: LayerCache,
        rows: PrefillRows,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        out = query.new_empty(*query.shape[:2], value.shape[2])
        start = context_start = 0
        for num_tokens, context_len in rows.spans:
            new = slice(start, start + num_tokens)
            keys, values = key[new], value[new]
            if rows.slots is not None:
                context = rows.slots[context_start : context_start + context_len]
                keys, values = read(cache, context)
            out[new] = _attend(query[new], keys, values, rules)
            start, context_start = start + num_tokens, context_start + context_len
        return out


def _attend(
    query: torch.Tensor,  # [Q, num_heads, k_dim]: the last Q positions of the context
    keys: torch.Tensor,  # [K, num_kv_heads, k_dim]
    values: torch.Tensor,  # [K, num_kv_heads, v_dim]
    rules: AttentionRules,
) -> torch.Tensor:  # [Q, num_heads, v_dim]
    num_queries, context_len = len(query), len(keys)
    is_plain = num_queries == context_len and rules.sliding_window is None
    mask = None
    if not is_plain:  # torch aligns its own causal mask to the first key, not to the last
        key_pos = torch.arange(context_len, device=query.device)
        query_pos = key_pos[-num_queries:, None]
        mask = key_pos <= query_pos
        if rules.sliding_window is not None:
            mask &= key_pos > query_pos - rules.sliding_window
    mixed: torch.Tensor = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=is_plain,
        scale=rules.scale,
        enable_gqa=True,
    )
    return mixed[0].transpose(0, 1)


class VarlenPrefill:
    """See Prefill. One call of torch's varlen attention for all Sequences (flash attention).

    `paged` hands the Blocks over as they are, which needs an implementation that takes
    `block_table`; torch's own (FlashAttention 2) has the argument and refuses it, so one must try.
    Otherwise the contexts are copied together first.
    """

    #: The largest head of FlashAttention 2 and 3.
    _MAX_DIM = 256

    def __init__(self, varlen_attn: Callable[..., Any], *, paged: bool) -> None:
        self._varlen_attn = varlen_attn
        self._paged = paged

    @staticmethod
    def has_arguments(varlen_attn: Callable[..., Any], *, paged: bool) -> bool:
        """Whether this torch's function knows what is asked of it; older ones know less."""
        needed = {"scale", "window_size", "enable_gqa"}
        if paged:
            needed |= {"seqused_k", "block_table"}
        return needed <= set(inspect.signature(varlen_attn).parameters)

    def supports(self, cache: LayerCache, rules: AttentionRules) -> bool:
        k_dim, v_dim = cache.keys.shape[2], cache.values.shape[3]
        return (
            rules.softcap is None
            and rules.sinks is None
            and cache.keys.dtype in (torch.bfloat16, torch.float16)
            and k_dim == v_dim
            and k_dim <= self._MAX_DIM
            and k_dim % 8 == 0
            and (not self._paged or is_token_major(cache))
        )

    def attend(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        key: torch.Tensor,  # [T, num_kv_heads, k_dim]
        value: torch.Tensor,  # [T, num_kv_heads, v_dim]
        cache: LayerCache,
        rows: PrefillRows,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        extra: dict[str, Any] = {}
        cu_keys: torch.Tensor | None = rows.cu_keys
        if rows.slots is not None and self._paged:
            key, value = as_pages(cache)
            extra = {"seqused_k": rows.context_lens, "block_table": rows.block_tables}
            cu_keys = None
        elif rows.slots is not None:
            key, value = read(cache, rows.slots)
        # Flash attention counts the keys to the left of a query, without its own.
        left = -1 if rules.sliding_window is None else rules.sliding_window - 1
        out: torch.Tensor = self._varlen_attn(
            query.contiguous(),
            key.contiguous(),  # Blocks are contiguous already, see `supports`
            value.contiguous(),
            rows.cu_queries,
            cu_keys,
            max(num_tokens for num_tokens, _ in rows.spans),
            max(context_len for _, context_len in rows.spans),
            scale=rules.scale,
            window_size=(left, 0),
            enable_gqa=True,
            **extra,
        )
        return out
