"""Attention in plain torch, one Sequence after the other: slow, obvious, and the oracle.

No Sequence's numbers depend on who shares the step, since each is computed by itself.
"""

from __future__ import annotations

import torch

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, Span


class ReferenceAttention:
    """See AttentionBackend. Supports grouped queries, windows, soft caps and sinks."""

    def forward(
        self,
        query: torch.Tensor,  # [T, num_heads, k_dim]
        keys: torch.Tensor,  # [num_slots, num_kv_heads, k_dim]
        values: torch.Tensor,  # [num_slots, num_kv_heads, v_dim]
        metadata: AttentionMetadata,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [T, num_heads, v_dim]
        out = query.new_empty(query.shape[0], query.shape[1], values.shape[2])
        for span in metadata.spans:
            end = span.start + span.num_tokens
            out[span.start : end] = self._attend(
                query[span.start : end],
                keys.index_select(0, span.context_slots),
                values.index_select(0, span.context_slots),
                span,
                rules,
            )
        return out

    def _attend(
        self,
        query: torch.Tensor,  # [Q, num_heads, k_dim]
        keys: torch.Tensor,  # [K, num_kv_heads, k_dim]
        values: torch.Tensor,  # [K, num_kv_heads, v_dim]
        span: Span,
        rules: AttentionRules,
    ) -> torch.Tensor:  # [Q, num_heads, v_dim]
        num_queries, num_heads, k_dim = query.shape
        num_kv_heads = keys.shape[1]
        group = num_heads // num_kv_heads
        # The query heads that share a key head become more query rows of that head.
        grouped = query.view(num_queries, num_kv_heads, group, k_dim).permute(1, 2, 0, 3)
        scores = grouped.reshape(num_kv_heads, group * num_queries, k_dim).float() @ (
            keys.permute(1, 2, 0).float()
        )
        scores = scores.view(num_kv_heads, group, num_queries, -1) * rules.scale
        if rules.softcap is not None:
            scores = rules.softcap * torch.tanh(scores / rules.softcap)
        hidden = _hidden(span, rules.sliding_window, query.device)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = _softmax(scores, rules.sinks)
        mixed = weights.view(num_kv_heads, group * num_queries, -1) @ (
            values.transpose(0, 1).float()
        )
        mixed = mixed.view(num_kv_heads, group, num_queries, -1).permute(2, 0, 1, 3)
        return mixed.reshape(num_queries, num_heads, -1).to(query.dtype)


def _hidden(span: Span, window: int | None, device: torch.device) -> torch.Tensor | None:
    """[Q, K] True where a query must not look; None when every query sees everything."""
    if span.num_tokens == 1 and (window is None or window >= span.context_len):
        return None
    key_pos = torch.arange(span.context_len, device=device)
    query_pos = key_pos[-span.num_tokens :, None]
    hidden = key_pos > query_pos
    if window is not None:
        hidden |= key_pos <= query_pos - window
    return hidden


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the keys of scores [Hkv, group, Q, K], in whose sum a sink takes part."""
    if sinks is None:
        return scores.softmax(-1)
    num_kv_heads, group, num_queries, _ = scores.shape
    column = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, num_queries, 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
