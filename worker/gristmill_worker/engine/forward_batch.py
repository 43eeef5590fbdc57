"""The packed tensors of one step. Building them changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gristmill_worker.attention.base import AttentionMetadata, Span
from gristmill_worker.engine.scheduler import Scheduled


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tokens of all scheduled Sequences, one after the other, without padding."""

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, counted within each Sequence
    last_token_indices: torch.Tensor  # [S] int64: packed rows whose logits are wanted
    metadata: AttentionMetadata


def build_forward_batch(
    scheduled: Sequence[Scheduled], block_size: int, device: torch.device
) -> ForwardBatch:
    """Pack the next tokens of the scheduled Sequences.

    Logits are wanted only of those that reach their end, in the order of `scheduled`.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    last_token_indices: list[int] = []
    spans: list[Span] = []
    for item in scheduled:
        seq, begin = item.seq, item.seq.num_computed_tokens
        context_len = begin + item.num_tokens
        slots = _slots(seq.block_table, context_len, block_size)
        spans.append(Span(len(input_ids), item.num_tokens, context_len, slots.to(device)))
        input_ids.extend(seq.token_ids[begin:context_len])
        positions.extend(range(begin, context_len))
        if item.reaches_end:
            last_token_indices.append(len(input_ids) - 1)
    new_slots = [span.context_slots[-span.num_tokens :] for span in spans]
    return ForwardBatch(
        input_ids=torch.tensor(input_ids, device=device),
        positions=torch.tensor(positions, device=device),
        last_token_indices=torch.tensor(last_token_indices, dtype=torch.long, device=device),
        metadata=AttentionMetadata(tuple(spans), torch.cat(new_slots)),
    )


def _slots(block_table: list[int], num_tokens: int, block_size: int) -> torch.Tensor:
    """Slots of the first `num_tokens` positions. [num_tokens] int64"""
    blocks = torch.tensor(block_table[: -(-num_tokens // block_size)])
    return (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:num_tokens]
