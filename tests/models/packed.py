"""Drives a ModelRunner with packed steps made by hand, and compares with each row alone.

The Engine asks for the logits of a row's last token only; here those of any can be seen.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from shrink import MAX_LEN, VOCAB_SIZE
from tiny import EOS, NumberDecoder, load_row_kernels, make_packing

from gristmill_worker.attention.base import AttentionBackend, AttentionMetadata
from gristmill_worker.engine.forward_batch import ForwardBatch
from gristmill_worker.engine.kv_cache import KVCache
from gristmill_worker.engine.model_runner import ModelRunner
from gristmill_worker.models.fuse import fuse_and_pack
from gristmill_worker.models.hook import ATTENTION
from gristmill_worker.models.loader import LoadedModel
from gristmill_worker.models.probe import forget_pad_token, probe


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [begin, end) of one row, computed in one step."""

    row: int
    begin: int
    end: int


def as_engine_takes_it(oracle: Any, *, packed: bool) -> LoadedModel:
    """The oracle's weights behind the hook, with plain or packed linear layers."""
    model = copy.deepcopy(oracle)
    layers = probe(type(model), model.config, max_model_len=MAX_LEN)
    model.set_attn_implementation(ATTENTION)
    forget_pad_token(model)
    if packed:
        fuse_and_pack(model, make_packing(), load_row_kernels())
    return LoadedModel(
        model=model,
        layers=layers,
        max_model_len=MAX_LEN,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset([EOS]),
        tokenizer=NumberDecoder(),
    )


@torch.inference_mode()
def logits_alone(oracle: Any, rows: Sequence[list[int]]) -> list[torch.Tensor]:
    """[length, vocab] of each row: one eager forward pass by transformers itself, no cache."""
    return [oracle(torch.tensor([row]), use_cache=False).logits[0] for row in rows]


def mixed_steps(lengths: Sequence[int], *, chunk: int, num_decoded: int) -> list[list[Piece]]:
    """Row n begins at step n, with chunks that grow by row; its last tokens come one by one."""
    queues = []
    for row, length in enumerate(lengths):
        prompt = max(1, length - num_decoded)
        edges = [*range(0, prompt, chunk + row), *range(prompt, length + 1)]
        queues.append([Piece(row, b, e) for b, e in itertools.pairwise(edges)])
    steps = []
    for n in range(max(row + len(queue) for row, queue in enumerate(queues))):
        step = [queue[n - row] for row, queue in enumerate(queues) if 0 <= n - row < len(queue)]
        steps.append(step)
    return [step for step in steps if step]


def random_steps(lengths: Sequence[int], seed: int) -> list[list[Piece]]:
    """Chunks of any size, in any order, with any company."""
    chance = random.Random(seed)
    done = [0] * len(lengths)
    steps = []
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        step = []
        for row in chance.sample(range(len(lengths)), chance.randint(1, len(lengths))):
            left = lengths[row] - done[row]
            if left:
                num = min(left, chance.choice((1, 1, 2, 7, 16, 100)))
                step.append(Piece(row, done[row], done[row] + num))
                done[row] += num
        if step:
            steps.append(step)
    return steps


def logits_packed(
    loaded: LoadedModel,
    attention: AttentionBackend,
    rows: Sequence[list[int]],
    steps: Sequence[Sequence[Piece]],
    *,
    block_size: int,
    num_asked: Callable[[Piece], int] = lambda piece: piece.end - piece.begin,
) -> list[torch.Tensor]:
    """[length, vocab] of each row, computed in these steps over scattered Blocks; of each piece
    the last `num_asked` tokens."""
    width = -(-max(map(len, rows)) // block_size)
    order = torch.randperm(width * len(rows), generator=torch.Generator().manual_seed(3))
    tables = order.view(len(rows), width).int()
    cache = KVCache(
        loaded.layers,
        width * len(rows),
        block_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for layer in cache.layers:  # as memory that was never written may be
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    runner = ModelRunner(loaded.model, cache, attention)
    found: list[list[torch.Tensor]] = [[] for _ in rows]
    for step in steps:
        asked = [num_asked(piece) for piece in step]
        logits = runner.run(_batch(rows, step, tables, block_size, asked))
        for piece, part in zip(step, logits.split(asked), strict=True):
            found[piece.row].append(part.clone())
    return [torch.cat(parts) for parts in found]


def _batch(
    rows: Sequence[list[int]],
    step: Sequence[Piece],
    tables: torch.Tensor,
    block_size: int,
    asked: Sequence[int],
) -> ForwardBatch:
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logits_indices: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for piece, num_asked in zip(step, asked, strict=True):
        spans.append((len(ids), piece.end - piece.begin, piece.end))
        ids += rows[piece.row][piece.begin : piece.end]
        positions += range(piece.begin, piece.end)
        logits_indices += range(len(ids) - num_asked, len(ids))
        table = tables[piece.row].tolist()
        slots += [
            table[p // block_size] * block_size + p % block_size
            for p in range(piece.begin, piece.end)
        ]
    return ForwardBatch(
        input_ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        logits_indices=torch.tensor(logits_indices, dtype=torch.long),
        metadata=AttentionMetadata(
            spans=torch.tensor(spans),
            block_tables=tables[[piece.row for piece in step]].contiguous(),
            slot_mapping=torch.tensor(slots),
        ),
    )
