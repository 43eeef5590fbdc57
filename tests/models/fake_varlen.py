"""Stands where torch.nn.attention.varlen.varlen_attn stands on a GPU."""

from __future__ import annotations

import itertools

import torch


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """What flash attention does, as its documentation has it: aligned to the last key, the window
    counted without the query's own key."""
    assert all(t.is_contiguous() for t in (query, key, value)) and enable_gqa
    assert cu_seq_q.dtype is torch.int32 and query.dtype in (torch.bfloat16, torch.float16)
    outputs = []
    for n, (begin, end) in enumerate(itertools.pairwise(cu_seq_q.tolist())):
        assert end - begin <= max_q
        if block_table is not None:
            assert seqused_k is not None and block_table.dtype is torch.int32
            used = int(seqused_k[n])
            k, v = (t[block_table[n].long()].flatten(0, 1)[:used] for t in (key, value))
        else:
            assert cu_seq_k is not None
            k, v = (t[int(cu_seq_k[n]) : int(cu_seq_k[n + 1])] for t in (key, value))
        assert len(k) <= max_k
        query_pos = torch.arange(end - begin)[:, None] + len(k) - (end - begin)
        key_pos = torch.arange(len(k))
        mask = key_pos <= query_pos + window_size[1]
        if window_size[0] >= 0:
            mask &= key_pos >= query_pos - window_size[0]
        out = torch.nn.functional.scaled_dot_product_attention(
            *(t.float().transpose(0, 1)[None] for t in (query[begin:end], k, v)),
            attn_mask=mask,
            scale=scale,
            enable_gqa=True,
        )
        outputs.append(out[0].transpose(0, 1).to(query.dtype))
    return torch.cat(outputs)
