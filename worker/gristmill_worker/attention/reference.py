"""Attention in plain torch, one Sequence after the other: slow, obvious, and the oracle."""

from __future__ import annotations

import torch

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, LayerCache


class ReferenceAttention:
    """See AttentionBackend. Supports grouped queries, windows, soft caps and sinks.

    A row does not depend on the others of its step; its last bits may depend on the chunk that it
    came in, since torch multiplies matrices of different shapes in different ways.
    """

    def forward(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        key: torch.Tensor,  # [T, num_kv_heads, k_dim]
        value: torch.Tensor,  # [T, num_kv_heads, v_dim]
        cache: LayerCache,
        metadata: AttentionMetadata,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        if cache.is_written:
            _write(cache, key, value, metadata.slot_mapping)
        out = query.new_empty(query.shape[0], query.shape[1], cache.values.shape[3])
        for n, (start, num_tokens, context_len) in enumerate(metadata.spans.tolist()):
            rows = slice(start, start + num_tokens)
            keys, values = _read(cache, metadata.block_tables[n], context_len)
            out[rows] = _attend(query[rows], keys, values, rules)
        return out


def _write(
    cache: LayerCache,
    key: torch.Tensor,  # [T, num_kv_heads, k_dim]
    value: torch.Tensor,  # [T, num_kv_heads, v_dim]
    slot_mapping: torch.Tensor,  # [T]
) -> None:
    blocks, offsets = slot_mapping // cache.block_size, slot_mapping % cache.block_size
    cache.keys[blocks, :, :, offsets] = key
    cache.values[blocks, :, offsets] = value


def _read(
    cache: LayerCache, block_table: torch.Tensor, context_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [num_kv_heads, k_dim, K] and values [num_kv_heads, K, v_dim] of one context."""
    blocks = block_table[: -(-context_len // cache.block_size)].long()
    keys = cache.keys[blocks].permute(1, 2, 0, 3).flatten(2)
    values = cache.values[blocks].transpose(0, 1).flatten(1, 2)
    return keys[:, :, :context_len], values[:, :context_len]


def _attend(
    query: torch.Tensor,  # [Q, num_heads, k_dim]: the last Q positions of the context
    keys: torch.Tensor,  # [num_kv_heads, k_dim, K]
    values: torch.Tensor,  # [num_kv_heads, K, v_dim]
    rules: AttentionRules,
) -> torch.Tensor:  # [Q, num_heads, v_dim]
    num_queries, num_heads, k_dim = query.shape
    num_kv_heads, _, context_len = keys.shape
    group = num_heads // num_kv_heads
    # The query heads that share a key head become more query rows of that head.
    grouped = query.reshape(num_queries, num_kv_heads, group, k_dim).permute(1, 2, 0, 3)
    scores = grouped.reshape(num_kv_heads, group * num_queries, k_dim).float() @ keys.float()
    scores = scores.view(num_kv_heads, group, num_queries, context_len) * rules.scale
    if rules.softcap is not None:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    key_pos = torch.arange(context_len, device=query.device)
    query_pos = key_pos[-num_queries:, None]
    hidden = key_pos > query_pos
    if rules.sliding_window is not None:
        hidden |= key_pos <= query_pos - rules.sliding_window
    weights = _softmax(scores.masked_fill(hidden, float("-inf")), rules.sinks)
    mixed = weights.reshape(num_kv_heads, group * num_queries, context_len) @ values.float()
    mixed = mixed.view(num_kv_heads, group, num_queries, -1).permute(2, 0, 1, 3)
    return mixed.reshape(num_queries, num_heads, -1).to(query.dtype)


def _softmax(
    scores: torch.Tensor,  # [num_kv_heads, group, Q, K]
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax over the keys, in whose sum the sink of the head takes part."""
    if sinks is None:
        return scores.softmax(-1)
    num_kv_heads, group, num_queries, _ = scores.shape
    column = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, num_queries, 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
