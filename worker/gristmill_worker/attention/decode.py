"""Attention of rows with one new token each, in plain torch: gather the contexts, then SDPA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from gristmill_worker.attention.base import AttentionRules, LayerCache
from gristmill_worker.attention.slots import MAX_GATHERED_TOKENS, read
from gristmill_worker.upload import upload


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """N Sequences with one query each, which is the last token of its context."""

    block_tables: torch.Tensor  # [N, max_blocks] int32
    context_lens: torch.Tensor  # [N] int32, where the cache is
    spans: torch.Tensor  # [N, 3] int64, on the CPU; stale within a graph, where N alone is true


class Decode(Protocol):
    """How a PagedAttention answers the rows with one new token."""

    #: Whether it reads nothing on the CPU but shapes, so that a CUDA graph can hold it.
    supports_graphs: bool

    def supports(self, cache: LayerCache, rules: AttentionRules) -> bool:
        """Else the reference answers."""

    def attend(
        self,
        query: torch.Tensor,  # [N, num_heads, k_dim]
        cache: LayerCache,
        rows: DecodeRows,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [N, num_heads, v_dim]
        ...


class GatherDecode:
    """See Decode. Rows of similar length share a call, so that short ones are padded little.

    With `by_length=False` all rows are taken as long as the block tables are wide. That is slow,
    and it depends on nothing that the CPU would have to know.
    """

    def __init__(self, *, by_length: bool = True) -> None:
        self.supports_graphs = not by_length

    def supports(self, cache: LayerCache, rules: AttentionRules) -> bool:
        return rules.softcap is None and rules.sinks is None

    def attend(
        self,
        query: torch.Tensor,  # [N, num_heads, k_dim]
        cache: LayerCache,
        rows: DecodeRows,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [N, num_heads, v_dim]
        if self.supports_graphs:
            width = rows.block_tables.shape[1] * cache.block_size
            return _attend(query, cache, rows.block_tables, rows.context_lens, width, rules)
        out = query.new_empty(*query.shape[:2], cache.values.shape[3])
        for members, width in self._groups(rows.spans[:, 2].tolist()):
            idx = upload(torch.tensor(members), query.device)
            num_blocks = -(-width // cache.block_size)
            out[idx] = _attend(
                query[idx],
                cache,
                rows.block_tables[idx, :num_blocks],
                rows.context_lens[idx],
                width,
                rules,
            )
        return out

    def _groups(self, context_lens: list[int]) -> list[tuple[list[int], int]]:
        """Rows and the longest context of each group: lengths within a factor of two."""
        groups: list[tuple[list[int], int]] = []
        order = sorted(range(len(context_lens)), key=lambda row: -context_lens[row])
        for row in order:
            length = context_lens[row]
            members, width = groups[-1] if groups else ([], 0)
            is_full = (len(members) + 1) * width > MAX_GATHERED_TOKENS
            if not members or is_full or 2 * length < width:
                groups.append(([row], length))
            else:
                members.append(row)
        return groups


def _attend(
    query: torch.Tensor,  # [N, num_heads, k_dim]
    cache: LayerCache,
    block_tables: torch.Tensor,  # [N, at least width / block_size]
    context_lens: torch.Tensor,  # [N]
    width: int,
    rules: AttentionRules,
) -> torch.Tensor:  # [N, num_heads, v_dim]
    num_rows, num_heads, _ = query.shape
    num_kv_heads = cache.keys.shape[1]
    lengths = context_lens.long()[:, None]
    key_pos = torch.arange(width, device=query.device)[None]  # [1, width]
    # Behind its end a row reads its last slot again: a slot never written may hold NaN, which
    # spoils the sum although its weight is 0.
    clamped = key_pos.minimum(lengths - 1)
    blocks = block_tables.long().gather(1, clamped // cache.block_size)
    keys, values = read(cache, blocks * cache.block_size + clamped % cache.block_size)
    is_seen = key_pos < lengths
    if rules.sliding_window is not None:
        is_seen &= key_pos >= lengths - rules.sliding_window
    # The query heads that share a key head are query rows of that head: no copy of the keys, and
    # all have the same mask.
    grouped = query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, -1)
    mixed = scaled_dot_product_attention(
        grouped,
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=is_seen[:, None, None],
        scale=rules.scale,
    )
    return mixed.reshape(num_rows, num_heads, -1)
