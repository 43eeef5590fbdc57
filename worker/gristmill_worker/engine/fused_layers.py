"""Runs layers of a model as single calls of C, all of them as one where they allow it.

Two small steps are traced when a ModelRunner begins (models/stretches.py). What was found is used
only if steps of several sizes have the very same bits with it as without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from gristmill_worker.attention.base import AttentionMetadata
from gristmill_worker.attention.compiled import CompiledAttention
from gristmill_worker.engine.forward_batch import ForwardBatch
from gristmill_worker.engine.kv_cache import KVCache
from gristmill_worker.models.narrow_program import num_skipped
from gristmill_worker.models.stretches import Argument, Stretch, find_stretches

log = logging.getLogger(__name__)

#: Steps that are compared, one after the other: tokens [begin, end) of each Sequence.
_TRIAL_STEPS = (((0, 1),), ((0, 5), (0, 1), (0, 9)), ((5, 6), (1, 4), (9, 10)))


class Step(Protocol):
    """A forward pass in which `num_calls` attention calls have been answered."""

    metadata: AttentionMetadata
    num_calls: int
    #: The rows that are asked about behind the last attention call, in their order. None: all.
    wanted: torch.Tensor | None  # [R] int64


class FusedLayers:
    """Programs in place of the layers of one model, over one KV cache."""

    def __init__(self, model: nn.Module, stretches: Sequence[Stretch]) -> None:
        self.stretches = stretches
        #: Whether a step can be told what is `wanted`: then the model gets these rows alone.
        self.can_narrow = any(stretch.narrow for stretch in stretches)
        self._row_bytes = max((_scratch_bytes(stretch) for stretch in stretches), default=0)
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._step: Step | None = None
        #: What is put in place, where: under a name in a dict of the model's.
        self._changes: list[tuple[dict[str, Any], str, Any]] = []
        for stretch in stretches:
            self._changes.append((vars(stretch.first), "forward", self._forward_of(stretch)))
            holders = _holders(model, stretch)
            if holders:
                alone = nn.ModuleList([stretch.first])
                self._changes += [(modules, name, alone) for modules, name in holders]
                continue
            for module, argument in stretch.others:
                self._changes.append((vars(module), "forward", _hand_on(argument)))

    @contextmanager
    def in_place(self, step: Step) -> Iterator[None]:
        """Within the block, the model's layers are these programs."""
        hidden = [place.get(name) for place, name, _ in self._changes]
        self._step = step
        for place, name, new in self._changes:
            place[name] = new  # a "forward" hides the method of the class
        try:
            yield
        finally:
            self._step = None
            for (place, name, _), before in zip(self._changes, hidden, strict=True):
                if before is None:
                    del place[name]
                else:
                    place[name] = before

    def _forward_of(self, stretch: Stretch) -> Callable[..., Any]:
        nothing_else = (None,) * (stretch.tuple_length - 1)

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = self._run(stretch, [argument.of(args, kwargs) for argument in stretch.inputs])
            return (output, *nothing_else) if stretch.tuple_length else output

        return forward

    def _run(self, stretch: Stretch, inputs: list[torch.Tensor]) -> torch.Tensor:  # [1, T, width]
        step = self._step
        assert step is not None, "a program was called outside of its step"
        assert step.num_calls == stretch.first_attention_call, (
            f"attention call {step.num_calls} is due, and not {stretch.first_attention_call}"
        )
        num_tokens = inputs[0].shape[1]
        for tensor in inputs:
            assert tensor.shape[:2] == (1, num_tokens) and tensor.is_contiguous(), tensor.shape
        if self._scratch.numel() < num_tokens * self._row_bytes:
            self._scratch = torch.empty(num_tokens * self._row_bytes, dtype=torch.uint8)
        metadata, wanted, narrow = step.metadata, step.wanted, stretch.narrow
        values = (
            *metadata.block_tables.shape,
            metadata.slot_mapping.data_ptr(),
            metadata.spans.data_ptr(),
            metadata.block_tables.data_ptr(),
        )
        scratch = self._scratch.data_ptr()
        if narrow is None or wanted is None:
            output = torch.empty(1, num_tokens, stretch.output_width)
            addresses = [tensor.data_ptr() for tensor in (output, *inputs)]
            stretch.program.run(num_tokens, (*values, 0, scratch, *addresses))
        else:
            output = torch.empty(1, len(wanted), stretch.output_width)
            skipped = num_skipped(metadata.spans, wanted)
            values = (*values, skipped.data_ptr(), scratch)
            narrow.run(values, inputs, wanted, scratch=self._scratch, output=output)
        step.num_calls += stretch.num_attention_calls
        return output


def _scratch_bytes(stretch: Stretch) -> int:
    programs = (stretch.program, stretch.narrow)
    return max(program.scratch_bytes for program in programs if program is not None)


def _holders(model: nn.Module, stretch: Stretch) -> list[tuple[dict[str, Any], str]]:
    """Where a list of just these modules stands. The first alone can stand for it, which saves the
    calls of the others."""
    modules = [stretch.first, *(module for module, _ in stretch.others)]
    return [
        (holder._modules, name)
        for holder in model.modules()
        for name, child in holder._modules.items()
        if len(modules) > 1 and type(child) is nn.ModuleList and list(child) == modules
    ]


def _hand_on(argument: Argument) -> Callable[..., torch.Tensor]:
    return lambda *args, **kwargs: argument.of(args, kwargs)


#: Runs a step with the layers given, or the model's own: logits [S, vocab_size].
Forward = Callable[[ForwardBatch, FusedLayers | None], torch.Tensor]
#: A step, and the logits [T, vocab_size] of all of its tokens by the model's own layers.
Trial = tuple[ForwardBatch, torch.Tensor]


@torch.inference_mode()
def fuse_layers(
    model: nn.Module, kv_cache: KVCache, attention: CompiledAttention, forward: Forward
) -> FusedLayers | None:
    """What of the model can be run in one call; None where that is nothing.

    To be called before the KV cache is used, since some of its first Blocks are written to.
    """

    def run_small_step(n: int) -> AttentionMetadata:
        pieces = ((0, 3), *[(0, 4)] * n)
        blocks = [kv_cache.scratch_block] * len(pieces)
        batch = _batch(model, pieces, blocks, kv_cache.block_size, max_blocks=1 + 2 * n)
        forward(batch, None)
        return batch.metadata

    try:
        stretches = find_stretches(model, attention.kernel, attention.cache_dir, run_small_step)
        if not stretches:
            return None
        layers = FusedLayers(model, stretches)
        # All of them first, so that each kind of run also reads keys and values of its own.
        trials = [(step, forward(step, None).clone()) for step in _trial_steps(model, kv_cache)]
        if not _has_same_bits(layers, forward, trials):
            return None
    except Exception as error:  # whatever a foreign model does that cannot be watched
        log.warning("layers run one by one reason=%s", str(error)[:200])
        return None
    layers.can_narrow = layers.can_narrow and _can_narrow(layers, forward, trials)
    num_modules = sum(1 + len(stretch.others) for stretch in stretches)
    log.info("layers run as programs modules=%d programs=%d", num_modules, len(stretches))
    return layers


def _has_same_bits(layers: FusedLayers, forward: Forward, trials: Sequence[Trial]) -> bool:
    for batch, expected in trials:
        if not torch.equal(forward(batch, layers), expected):
            log.warning("layers run one by one reason=programs gave other bits in a trial step")
            return False
    return True


def _can_narrow(layers: FusedLayers, forward: Forward, trials: Sequence[Trial]) -> bool:
    """Whether logits are the same when the model gets no other rows behind its last layer."""
    for batch, expected in trials:
        some_rows = (batch.metadata.spans[:, :2].sum(1) - 1)[1:]
        try:
            found = forward(replace(batch, logits_indices=some_rows), layers)
        except Exception as error:  # whatever a foreign model does behind its layers
            log.debug("all rows run to the end reason=%s", str(error)[:200])
            return False
        if not torch.equal(found, expected[some_rows]):
            return False
    return True


def _trial_steps(model: nn.Module, kv_cache: KVCache) -> Iterator[ForwardBatch]:
    blocks = [kv_cache.scratch_block, *range(kv_cache.num_blocks)]
    for pieces in _TRIAL_STEPS:
        some = pieces[: len(blocks)]
        yield _batch(model, some, blocks[: len(some)], kv_cache.block_size, max_blocks=2)


def _batch(
    model: Any,
    pieces: Sequence[tuple[int, int]],
    blocks: Sequence[int],
    block_size: int,
    *,
    max_blocks: int,
) -> ForwardBatch:
    """Random tokens [begin, end) of some Sequences, each with one Block; all logits are wanted."""
    num_ids = model.get_input_embeddings().num_embeddings
    positions = torch.tensor([p for begin, end in pieces for p in range(begin, end)])
    num_tokens = [end - begin for begin, end in pieces]
    starts = [sum(num_tokens[:n]) for n in range(len(pieces))]
    spans = [(start, e - b, e) for start, (b, e) in zip(starts, pieces, strict=True)]
    first_slots = torch.tensor(blocks).repeat_interleave(torch.tensor(num_tokens)) * block_size
    generator = torch.Generator().manual_seed(len(positions))
    return ForwardBatch(
        input_ids=torch.randint(num_ids, (len(positions),), generator=generator),
        positions=positions,
        logits_indices=torch.arange(len(positions)),
        metadata=AttentionMetadata(
            spans=torch.tensor(spans),
            block_tables=torch.tensor(blocks, dtype=torch.int32)[:, None].repeat(1, max_blocks),
            slot_mapping=first_slots + positions,
        ),
    )
