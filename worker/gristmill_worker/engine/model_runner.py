"""Runs the packed tensors of a step through the model and returns the logits that are wanted."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import torch

from gristmill.types import TokenLogprob
from gristmill_worker.attention.base import AttentionBackend, AttentionMetadata
from gristmill_worker.attention.compiled import CompiledAttention
from gristmill_worker.attention.paged import PagedAttention
from gristmill_worker.engine.forward_batch import ForwardBatch
from gristmill_worker.engine.fused_layers import FusedLayers, fuse_layers
from gristmill_worker.engine.head import Head
from gristmill_worker.engine.kv_cache import KVCache
from gristmill_worker.engine.logprobs import report
from gristmill_worker.engine.step_graph import Capture, StepGraphs, cuda_capture
from gristmill_worker.models.adapters import AdaptedLayers, Deltas
from gristmill_worker.models.hook import AttentionCall, forward_context
from gristmill_worker.models.row_kernels import RowKernels

log = logging.getLogger(__name__)

#: Rows of logits that are held at once where a step has many more to look at.
_SCORED_AT_ONCE = 64


class ModelRunner:
    """One model, one KV cache, one attention backend."""

    def __init__(
        self,
        model: torch.nn.Module,
        kv_cache: KVCache,
        attention: AttentionBackend,
        row_kernels: RowKernels | None = None,
        adapters: Mapping[str, Deltas] | None = None,
    ) -> None:
        self.model = model
        self._row_kernels = row_kernels
        self.kv_cache = kv_cache
        self.attention = attention
        self.device = next(model.parameters()).device
        self._graphs: StepGraphs | None = None
        self._head = Head(model)
        self._layers: FusedLayers | None = None
        if isinstance(attention, CompiledAttention):
            self._layers = fuse_layers(model, kv_cache, attention, self._run_model)
        self._adapted = AdaptedLayers(model, adapters or {})

    @torch.inference_mode()
    def run(self, batch: ForwardBatch) -> torch.Tensor:  # [S, vocab_size] float32
        """The logits that are wanted; they may be written over by the next call."""
        if batch.copies is not None:
            self.kv_cache.copy_blocks(batch.copies)
        if batch.scored is not None or batch.is_pooled:
            with self._head.remembering():
                return self._forward(batch)
        if self._graphs is None or batch.adapter_rows:  # a graph knows of no adapter
            return self._forward(batch)
        logits = self._graphs.run(batch)
        return self._forward(batch) if logits is None else logits

    @functools.cached_property
    def makes_vectors(self) -> bool:
        """Whether the model shows its last hidden states, and they are what it says they are."""
        with torch.inference_mode():
            return self._head.shows_hidden_states()

    def hidden_states(self) -> torch.Tensor:  # [T, hidden_size]
        """The last hidden states of the batch that `run` has just run, if it `is_pooled`."""
        return self._head.hidden_states()

    @torch.inference_mode()
    def score(self, batch: ForwardBatch) -> list[TokenLogprob]:
        """The log-probabilities that `batch.scored` asks for; `run` has just run the batch.

        Never more than a slice of their logits is held. A model whose head cannot be run alone
        runs once more for each slice, which writes the same keys and values again.
        """
        if batch.scored is None:
            self._head.forget()
            return []
        reports: list[TokenLogprob] = []
        for begin in range(0, len(batch.scored.token_ids), _SCORED_AT_ONCE):
            some = slice(begin, begin + _SCORED_AT_ONCE)
            indices = batch.scored.indices[some]
            if self._head.is_split:
                logits = self._head.logits(indices).float()
            else:
                logits = self._forward(replace(batch, logits_indices=indices))
            token_ids, num_top = batch.scored.token_ids[some], batch.scored.num_top[some]
            reports += report(logits, token_ids, num_top, self._row_kernels)
        self._head.forget()
        return reports

    @torch.inference_mode()
    def capture_decode(
        self, *, max_num_seqs: int, max_model_len: int, capture: Capture | None = None
    ) -> None:
        """Hold decode steps of up to `max_num_seqs` rows as graphs, where attention allows it.

        A model that cannot be captured runs without graphs, and the log says why.
        """
        attention = self.attention
        if not isinstance(attention, PagedAttention) or not attention.supports_graphs:
            log.info("decode runs without graphs reason=attention reads its step on the host")
            return
        began = time.monotonic()
        try:
            self._graphs = StepGraphs(
                self._forward,
                capture or cuda_capture(),
                max_num_seqs=max_num_seqs,
                max_blocks=-(-max_model_len // self.kv_cache.block_size),
                scratch_block=self.kv_cache.scratch_block,
                block_size=self.kv_cache.block_size,
                device=self.device,
            )
        except Exception as error:  # whatever a foreign model does that a graph cannot hold
            log.warning("decode runs without graphs reason=%s", str(error)[:200])
            return
        log.info(
            "decode runs as graphs rows=%s seconds=%.1f",
            ",".join(map(str, self._graphs.ladder)),
            time.monotonic() - began,
        )

    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        if not batch.adapter_rows:
            return self._run_model(batch, self._layers)
        with self._adapted.in_place(batch.adapter_rows, len(batch.input_ids)):
            return self._run_model(batch, None)  # programs run layers as they were traced

    def _run_model(self, batch: ForwardBatch, fused: FusedLayers | None) -> torch.Tensor:
        logits_indices = batch.logits_indices
        wanted = logits_indices if fused is not None and _is_narrow(batch, fused) else None
        step = _Step(self.kv_cache, self.attention, batch.metadata, wanted)
        layers = nullcontext() if fused is None else fused.in_place(step)
        with forward_context(step), layers:
            output = self.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,  # else transformers keeps all keys and values a second time
                logits_to_keep=logits_indices if wanted is None else torch.arange(len(wanted)),
            )
        assert step.num_calls == len(self.kv_cache.layers), (
            f"the model made {step.num_calls} attention calls, the probe saw "
            f"{len(self.kv_cache.layers)}"
        )
        logits: torch.Tensor = output.logits[0]
        return logits.float()


def _is_narrow(batch: ForwardBatch, fused: FusedLayers) -> bool:
    """Whether the last layer can be run for the rows of its logits only, and that is less."""
    asks_more = batch.scored is not None or batch.is_pooled
    is_less = len(batch.logits_indices) < len(batch.input_ids)
    return fused.can_narrow and is_less and not asks_more


class _Step:
    """A ForwardContext. The n-th call belongs to the n-th layer of the cache.

    Calls are counted, since `module.layer_idx` lies: some models attend twice in a layer, or run a
    layer several times, and the order of calls never changes.
    """

    def __init__(
        self,
        kv_cache: KVCache,
        attention: AttentionBackend,
        metadata: AttentionMetadata,
        wanted: torch.Tensor | None,
    ) -> None:
        self.kv_cache = kv_cache
        self.attention = attention
        self.metadata = metadata
        self.num_calls = 0
        self.wanted = wanted

    def attend(self, call: AttentionCall) -> torch.Tensor:  # [1, T, num_heads, v_dim]
        layer, self.num_calls = self.num_calls, self.num_calls + 1
        query, key, value = (t[0].transpose(0, 1) for t in (call.query, call.key, call.value))
        cache = self.kv_cache.layers[layer]
        return self.attention.forward(query, key, value, cache, self.metadata, call.rules)[None]
