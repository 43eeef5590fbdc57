"""The packed tensors of one step. Building them changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill_worker.attention.base import AttentionMetadata
from gristmill_worker.engine.scheduler import Scheduled


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Tokens of prompts whose log-probabilities a step finds, in the order of the step."""

    indices: torch.Tensor  # [R] int64: the packed rows that predict them
    token_ids: list[int]
    #: How many likeliest tokens to report beside each.
    num_top: list[int]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tokens of all scheduled Sequences, one after the other, without padding."""

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, counted within each Sequence
    logits_indices: torch.Tensor  # [S] int64: packed rows whose logits are wanted
    metadata: AttentionMetadata
    scored: ScoredTokens | None = None
    #: Whether hidden states are wanted too.
    is_pooled: bool = False
    #: Blocks to copy before anything is written: (from, to) in each row. [C, 2] int64
    copies: torch.Tensor | None = None


def build_forward_batch(
    scheduled: Sequence[Scheduled], block_size: int, device: torch.device
) -> ForwardBatch:
    """Pack the next tokens of the scheduled Sequences.

    Logits are wanted only of those that reach their end, in the order of `scheduled`: of the last
    token, and of the drafts behind it.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    logits_indices: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for item in scheduled:
        seq, begin = item.seq, item.seq.num_computed_tokens
        context_len = begin + item.num_tokens
        spans.append((len(input_ids), item.num_tokens, context_len))
        input_ids.extend(seq.token_ids[begin : begin + item.num_known_tokens])
        input_ids.extend(item.drafts)
        positions.extend(range(begin, context_len))
        logits_indices.extend(range(len(input_ids) - item.num_logits, len(input_ids)))
    span_table, position_ids = torch.tensor(spans), torch.tensor(positions)
    block_tables = _block_tables(scheduled)
    seq_idx = torch.arange(len(spans)).repeat_interleave(span_table[:, 1])
    blocks = block_tables[seq_idx, position_ids // block_size].long()
    return ForwardBatch(
        input_ids=_upload(torch.tensor(input_ids), device),
        positions=_upload(position_ids, device),
        logits_indices=_upload(torch.tensor(logits_indices, dtype=torch.long), device),
        metadata=AttentionMetadata(
            spans=span_table,
            block_tables=_upload(block_tables, device),
            slot_mapping=_upload(blocks * block_size + position_ids % block_size, device),
            context_lens=_upload(span_table[:, 2].int(), device),
        ),
        scored=_scored_tokens(scheduled, device),
        is_pooled=any(item.seq.embedding is not None for item in scheduled),
        copies=_copies(scheduled, block_size, device),
    )


def _copies(
    scheduled: Sequence[Scheduled], block_size: int, device: torch.device
) -> torch.Tensor | None:
    copies = [
        (item.forked_from, item.seq.block_table[item.seq.num_computed_tokens // block_size])
        for item in scheduled
        if item.forked_from is not None
    ]
    return _upload(torch.tensor(copies), device) if copies else None


def _scored_tokens(scheduled: Sequence[Scheduled], device: torch.device) -> ScoredTokens | None:
    indices: list[int] = []
    token_ids: list[int] = []
    num_top: list[int] = []
    offset = 0
    for item in scheduled:
        seq, scored = item.seq, item.newly_scored
        row_of_first_token = offset - seq.num_computed_tokens
        indices.extend(row_of_first_token + position - 1 for position in scored)
        token_ids.extend(seq.token_ids[scored.start : scored.stop])
        num_top.extend([seq.params.logprobs or 0] * len(scored))
        offset += item.num_tokens
    if not indices:
        return None
    return ScoredTokens(_upload(torch.tensor(indices), device), token_ids, num_top)


def _upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """From pinned memory, so that the host goes on while the copy waits for its turn."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _block_tables(scheduled: Sequence[Scheduled]) -> torch.Tensor:
    """The block tables under each other, filled up with 0. [S, max_blocks] int32"""
    width = max(len(item.seq.block_table) for item in scheduled)
    rows = [item.seq.block_table + [0] * (width - len(item.seq.block_table)) for item in scheduled]
    return torch.tensor(rows, dtype=torch.int32)
