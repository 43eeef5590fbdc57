"""The packed tensors of one step. Building them changes nothing."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gristmill_worker.attention.base import AttentionMetadata
from gristmill_worker.engine.plan import Scheduled
from gristmill_worker.models.adapters import AdapterRows
from gristmill_worker.upload import upload


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
    #: Of Sequences with a LoRA adapter.
    adapter_rows: Sequence[AdapterRows] = ()


@dataclass(frozen=True, slots=True)
class Unseen:
    """The tokens that a step under way picks, where only the device has them."""

    token_ids: torch.Tensor  # [P] int64; one below 0 is none
    #: The entry of each Sequence.
    place_of: Mapping[str, int]


def build_forward_batch(
    scheduled: Sequence[Scheduled],
    block_size: int,
    device: torch.device,
    unseen: Unseen | None = None,
) -> ForwardBatch:
    """Pack the next tokens of the scheduled Sequences, the last of which may be `unseen` yet.

    Logits are wanted only of those that reach their end, in the order of `scheduled`: of the last
    token, and of the drafts behind it.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    logits_indices: list[int] = []
    spans: list[tuple[int, int, int]] = []
    foreseen: list[tuple[int, str]] = []
    of_adapters: dict[str, list[int]] = {}
    for item in scheduled:
        seq, begin, end = item.seq, item.begin, item.end
        context_len = begin + item.num_tokens
        spans.append((len(input_ids), item.num_tokens, context_len))
        if seq.adapter:
            rows = of_adapters.setdefault(seq.adapter, [])
            rows.extend(range(len(input_ids), len(input_ids) + item.num_tokens))
        input_ids.extend(seq.token_ids[begin:end])
        if end > len(seq.token_ids):
            foreseen.append((len(input_ids), seq.seq_id))
            input_ids.append(0)
        input_ids.extend(item.drafts)
        positions.extend(range(begin, context_len))
        if item.reaches_end:
            logits_indices.extend(range(len(input_ids) - item.num_logits, len(input_ids)))
    span_table, position_ids = torch.tensor(spans), torch.tensor(positions)
    block_tables = _block_tables(scheduled)
    seq_idx = torch.arange(len(spans)).repeat_interleave(span_table[:, 1])
    blocks = block_tables[seq_idx, position_ids // block_size].long()
    return ForwardBatch(
        input_ids=_filled_in(upload(torch.tensor(input_ids), device), foreseen, unseen),
        positions=upload(position_ids, device),
        logits_indices=upload(torch.tensor(logits_indices, dtype=torch.long), device),
        metadata=AttentionMetadata(
            spans=span_table,
            block_tables=upload(block_tables, device),
            slot_mapping=upload(blocks * block_size + position_ids % block_size, device),
            context_lens=upload(span_table[:, 2].int(), device),
        ),
        scored=_scored_tokens(scheduled, device),
        is_pooled=any(item.seq.embedding is not None for item in scheduled),
        copies=_copies(scheduled, block_size, device),
        adapter_rows=[
            AdapterRows(adapter, upload(torch.tensor(rows), device))
            for adapter, rows in of_adapters.items()
        ],
    )


def _filled_in(
    input_ids: torch.Tensor, foreseen: list[tuple[int, str]], unseen: Unseen | None
) -> torch.Tensor:
    """`input_ids` with the unseen token of each Sequence in its place, (place, Sequence)."""
    if not foreseen:
        return input_ids
    assert unseen is not None, "nothing is under way that could yield these tokens"
    places = [(place, unseen.place_of[seq_id]) for place, seq_id in foreseen]
    targets, sources = upload(torch.tensor(places).T.contiguous(), input_ids.device)
    # The token of a row without one may be any: what is computed behind it does not count.
    token_ids = unseen.token_ids.index_select(0, sources).clamp_(min=0)
    return input_ids.index_copy_(0, targets, token_ids)


def _copies(
    scheduled: Sequence[Scheduled], block_size: int, device: torch.device
) -> torch.Tensor | None:
    copies = [
        (item.forked_from, item.seq.block_table[item.begin // block_size])
        for item in scheduled
        if item.forked_from is not None
    ]
    return upload(torch.tensor(copies), device) if copies else None


def _scored_tokens(scheduled: Sequence[Scheduled], device: torch.device) -> ScoredTokens | None:
    if all(item.seq.scored_from is None for item in scheduled):
        return None
    indices: list[int] = []
    token_ids: list[int] = []
    num_top: list[int] = []
    offset = 0
    for item in scheduled:
        seq, scored = item.seq, item.newly_scored
        row_of_first_token = offset - item.begin
        indices.extend(row_of_first_token + position - 1 for position in scored)
        token_ids.extend(seq.token_ids[scored.start : scored.stop])
        num_top.extend([seq.params.logprobs or 0] * len(scored))
        offset += item.num_tokens
    if not indices:
        return None
    return ScoredTokens(upload(torch.tensor(indices), device), token_ids, num_top)


def _block_tables(scheduled: Sequence[Scheduled]) -> torch.Tensor:
    """The block tables under each other, filled up with 0. [S, max_blocks] int32"""
    tables = [item.seq.block_table for item in scheduled]
    width = max(map(len, tables))
    entries: list[int] = []
    for table in tables:
        entries += table
        entries += [0] * (width - len(table))
    # torch takes several times as long to read a list.
    return torch.frombuffer(array("i", entries), dtype=torch.int32).view(len(tables), width)
