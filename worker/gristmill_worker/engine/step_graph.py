"""Decode steps held as CUDA graphs: one for each rung of a ladder of row counts.

A graph replays the same kernels over the same memory without the host's work in between. So a step
is copied into fixed buffers, filled up with rows that pad it, and the next higher rung is replayed.
Only steps in which every row has one new token are held; all others run as they are.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable

import torch

from gristmill_worker.attention.base import AttentionMetadata
from gristmill_worker.engine.forward_batch import ForwardBatch

#: Records a step, which takes and returns nothing but works on fixed tensors, and gives back what
#: repeats it. The step runs at least once.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


def ladder(max_num_seqs: int) -> list[int]:
    """Row counts that graphs are made for: 1, 2, 4, 8, 16, 24, 32, … and the largest."""
    rungs = [1, 2, 4, *range(8, max_num_seqs, 8)]
    return [rows for rows in rungs if rows < max_num_seqs] + [max_num_seqs]


class StepGraphs:
    """The graphs of one ModelRunner, captured when it is made."""

    def __init__(
        self,
        forward: Callable[[ForwardBatch], torch.Tensor],
        capture: Capture,
        *,
        max_num_seqs: int,
        max_blocks: int,
        scratch_block: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._scratch_block = scratch_block
        self._scratch_slot = scratch_block * block_size
        self._buffers = _make_buffers(max_num_seqs, max_blocks, device)
        self.ladder = ladder(max_num_seqs)
        self._pad(0, max_num_seqs)
        #: One for all rungs: a graph must keep what it returns, and logits are large.
        self._logits = forward(self._rows(max_num_seqs)).clone()
        # The largest first: the smaller ones then find room in the memory that it has taken.
        self._replay = {
            rows: capture(functools.partial(self._step, forward, rows))
            for rows in reversed(self.ladder)
        }

    def run(self, batch: ForwardBatch) -> torch.Tensor | None:  # [S, vocab_size] float32
        """The logits, valid until the next call; None when no graph holds such a step."""
        metadata = batch.metadata
        num_rows, width = metadata.block_tables.shape
        is_decode = len(batch.input_ids) == num_rows
        buffers = self._buffers
        if not is_decode or num_rows > self.ladder[-1]:
            return None
        if width > buffers.metadata.block_tables.shape[1]:
            return None
        rung = self.ladder[bisect.bisect_left(self.ladder, num_rows)]
        for buffer, tensor in zip(_tensors(buffers), _tensors(batch), strict=True):
            buffer[:num_rows].copy_(tensor, non_blocking=True)
        buffers.metadata.block_tables[:num_rows, :width].copy_(metadata.block_tables)
        self._pad(num_rows, rung)
        self._replay[rung]()
        logits = self._logits[:num_rows]
        if len(batch.logits_indices) < num_rows:  # a prompt may have one token left of a chunk
            return logits[batch.logits_indices]
        return logits

    def _step(self, forward: Callable[[ForwardBatch], torch.Tensor], rows: int) -> None:
        self._logits[:rows].copy_(forward(self._rows(rows)))

    def _rows(self, num_rows: int) -> ForwardBatch:
        """The first rows of the buffers, which share their memory."""
        buffers = self._buffers
        assert buffers.metadata.context_lens is not None
        return ForwardBatch(
            input_ids=buffers.input_ids[:num_rows],
            positions=buffers.positions[:num_rows],
            logits_indices=buffers.logits_indices[:num_rows],
            metadata=AttentionMetadata(
                spans=buffers.metadata.spans[:num_rows],
                block_tables=buffers.metadata.block_tables[:num_rows],
                slot_mapping=buffers.metadata.slot_mapping[:num_rows],
                context_lens=buffers.metadata.context_lens[:num_rows],
            ),
        )

    def _pad(self, begin: int, end: int) -> None:
        """Make rows [begin, end) Sequences of one token in the scratch Block."""
        if begin == end:
            return
        input_ids, positions, slot_mapping, context_lens, spans = _tensors(self._buffers)
        input_ids[begin:end] = 0
        positions[begin:end] = 0
        slot_mapping[begin:end] = self._scratch_slot
        context_lens[begin:end] = 1
        spans[begin:end, 2] = 1
        self._buffers.metadata.block_tables[begin:end] = self._scratch_block


def _make_buffers(num_rows: int, max_blocks: int, device: torch.device) -> ForwardBatch:
    spans = torch.ones(num_rows, 3, dtype=torch.long)
    spans[:, 0] = torch.arange(num_rows)
    return ForwardBatch(
        input_ids=torch.zeros(num_rows, dtype=torch.long, device=device),
        positions=torch.zeros(num_rows, dtype=torch.long, device=device),
        logits_indices=torch.arange(num_rows, device=device),
        metadata=AttentionMetadata(
            spans=spans,
            block_tables=torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=device),
            slot_mapping=torch.zeros(num_rows, dtype=torch.long, device=device),
            context_lens=torch.ones(num_rows, dtype=torch.int32, device=device),
        ),
    )


def _tensors(batch: ForwardBatch) -> tuple[torch.Tensor, ...]:
    """What has one entry for each row of a decode step, but for the block tables."""
    metadata = batch.metadata
    assert metadata.context_lens is not None, "build_forward_batch gives them"
    return (
        batch.input_ids,
        batch.positions,
        metadata.slot_mapping,
        metadata.context_lens,
        metadata.spans,
    )


def cuda_capture() -> Capture:
    """Captures CUDA graphs that share one pool of memory, since only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        # Outside of a graph first: libraries set themselves up and kernels are compiled, and
        # neither may happen while a graph is captured.
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            step()
        replay: Callable[[], None] = graph.replay
        return replay

    return capture
