"""Attention for GPUs: rows with one new token are answered by one way, longer ones by another.

Whatever the two do not support, such as soft caps, goes to the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gristmill_worker.attention.base import AttentionMetadata, AttentionRules, LayerCache
from gristmill_worker.attention.decode import Decode, DecodeRows
from gristmill_worker.attention.prefill import Prefill, PrefillRows, make_prefill_rows
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.attention.slots import MAX_GATHERED_TOKENS, write
from gristmill_worker.upload import upload


@dataclass(frozen=True, slots=True)
class _Part:
    """Some Sequences of a step, and their packed rows; None when these are all there are."""

    packed: torch.Tensor | None  # [T'] int64
    rows: DecodeRows | PrefillRows
    metadata: AttentionMetadata  # of these Sequences alone, for the reference


class PagedAttention:
    """See AttentionBackend. `decode` and `prefill` are told apart by the number of new tokens."""

    def __init__(self, decode: Decode, prefill: Prefill) -> None:
        self.decode = decode
        self.prefill = prefill
        self._reference = ReferenceAttention()
        self._parts_of: AttentionMetadata | None = None
        self._parts: list[_Part] = []

    @property
    def supports_graphs(self) -> bool:
        """Whether a step in which all rows have one new token can be held in a CUDA graph."""
        return self.decode.supports_graphs

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
            write(cache, key, value, metadata.slot_mapping)
        if metadata is not self._parts_of:  # the first layer of a step
            self._parts, self._parts_of = _split(metadata, cache.block_size), metadata
        if len(self._parts) == 1 and self._parts[0].packed is None:
            return self._attend(query, key, value, cache, self._parts[0], rules)
        out = query.new_empty(*query.shape[:2], value.shape[2])
        for part in self._parts:
            idx = part.packed
            out[idx] = self._attend(query[idx], key[idx], value[idx], cache, part, rules)
        return out

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: LayerCache,
        part: _Part,
        rules: AttentionRules,
    ) -> torch.Tensor:
        rows = part.rows
        if isinstance(rows, DecodeRows):
            if self.decode.supports(cache, rules):
                return self.decode.attend(query, cache, rows, rules)
        elif self.prefill.supports(cache, rules):
            return self.prefill.attend(query, key, value, cache, rows, rules)
        if query.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("the reference reads the spans, which a CUDA graph cannot replay")
        written = LayerCache(cache.keys, cache.values, is_written=False)
        return self._reference.forward(query, key, value, written, part.metadata, rules)


def _split(metadata: AttentionMetadata, block_size: int) -> list[_Part]:
    """The Sequences with one new token, and the others in portions."""
    spans: list[list[int]] = metadata.spans.tolist()
    context_lens = metadata.context_lens
    if context_lens is None:
        context_lens = upload(metadata.spans[:, 2].int(), metadata.block_tables.device)
    if all(num_tokens == 1 for _, num_tokens, _ in spans):
        # No tensor is made here, and no value but the number of rows is read: a graph holds this.
        rows = DecodeRows(metadata.block_tables, context_lens, metadata.spans)
        return [_Part(None, rows, metadata)]
    decoding = [n for n, span in enumerate(spans) if span[1] == 1]
    parts: list[_Part] = []
    if decoding:
        part = _select(metadata, spans, decoding)
        seq_idx = upload(torch.tensor(decoding), context_lens.device)
        rows = DecodeRows(part.block_tables, context_lens[seq_idx], part.spans)
        parts.append(_Part(_packed(metadata, spans, decoding), rows, part))
    for portion in _portions(spans):
        part = _select(metadata, spans, portion)
        lens = [(spans[n][1], spans[n][2]) for n in portion]
        is_all = len(portion) == len(spans)
        packed = None if is_all else _packed(metadata, spans, portion)
        parts.append(_Part(packed, make_prefill_rows(lens, part.block_tables, block_size), part))
    return parts


def _portions(spans: list[list[int]]) -> list[list[int]]:
    portions: list[list[int]] = []
    room = 0
    for n, (_, num_tokens, context_len) in enumerate(spans):
        if num_tokens == 1:
            continue
        if not portions or context_len > room:
            portions.append([])
            room = MAX_GATHERED_TOKENS
        portions[-1].append(n)
        room -= context_len
    return portions


def _packed(
    metadata: AttentionMetadata, spans: list[list[int]], seqs: list[int]
) -> torch.Tensor:  # [T'] int64
    rows = [row for n in seqs for row in range(spans[n][0], spans[n][0] + spans[n][1])]
    return upload(torch.tensor(rows), metadata.slot_mapping.device)


def _select(
    metadata: AttentionMetadata, spans: list[list[int]], seqs: list[int]
) -> AttentionMetadata:
    """The metadata of some Sequences, whose packed rows have been put one after the other."""
    start, chosen = 0, []
    for n in seqs:
        chosen.append((start, spans[n][1], spans[n][2]))
        start += spans[n][1]
    seq_idx = upload(torch.tensor(seqs), metadata.block_tables.device)
    return AttentionMetadata(
        spans=torch.tensor(chosen),
        block_tables=metadata.block_tables[seq_idx],
        slot_mapping=metadata.slot_mapping,  # not used: the keys are written
    )
