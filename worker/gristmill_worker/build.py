"""Makes the Engine of this machine: its memory, its fastest attention, the limits asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.attention.base import AttentionBackend
from gristmill_worker.attention.choose import choose_attention
from gristmill_worker.attention.self_test import HeadShape
from gristmill_worker.attention.slots import MAX_GATHERED_TOKENS
from gristmill_worker.engine.base import NOTHING
from gristmill_worker.engine.drafter import FIXED_TOKENS
from gristmill_worker.engine.engine import ContinuousBatchingEngine, EngineConfig
from gristmill_worker.engine.forward_batch import build_forward_batch
from gristmill_worker.engine.kv_cache import KVCache
from gristmill_worker.engine.model_runner import ModelRunner
from gristmill_worker.engine.plan import Scheduled
from gristmill_worker.engine.sequence import Sequence
from gristmill_worker.memory import CudaMemory, DeviceMemory, free_memory_bytes
from gristmill_worker.models.loader import LoadedModel
from gristmill_worker.models.plain_weights import trim_memory

log = logging.getLogger(__name__)

#: Share of the free memory that the KV cache gets. Main memory is shared with other programs and
#: with the page cache; a GPU is the Worker's own, and its largest step is measured.
_CPU_FRACTION, _GPU_FRACTION = 0.5, 0.9
#: What the Sampler holds for one logit at most: in float64 the scaled, the weights, those that
#: limits leave, their sums and one to work with; in float32 copies for log-probabilities and for
#: rows that have to draw again.
_SAMPLER_BYTES_PER_LOGIT = 6 * 8


def build_engine(
    loaded: LoadedModel,
    *,
    cache_dir: Path,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
    block_size: int = 16,
    kv_memory_fraction: float | None = None,
    drafts: bool = True,
) -> ContinuousBatchingEngine:
    """The KV cache gets `kv_memory_fraction` of the memory that is free now (0.5 of main memory,
    0.9 of a GPU's after its largest step); a kernel that must be compiled first is kept in
    `cache_dir`. Without `drafts` no step computes draft tokens. Raises OutOfMemory."""
    parameter = next(loaded.model.parameters())
    device = parameter.device
    attention = choose_attention(
        dtype=parameter.dtype,
        device=device,
        block_size=block_size,
        cache_dir=cache_dir / "kernels",
        shapes=head_shapes(loaded),
    )
    if device.type == "cpu":
        fraction = kv_memory_fraction or _CPU_FRACTION
        kv_cache_bytes = int(free_memory_bytes() * fraction)
    else:
        kv_cache_bytes = kv_cache_bytes_on_gpu(
            loaded,
            attention,
            CudaMemory(device.index or 0),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            fraction=kv_memory_fraction or _GPU_FRACTION,
        )
    config = EngineConfig(
        kv_cache_bytes=kv_cache_bytes,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        decode_graphs=device.type != "cpu",
        asynchronous=device.type != "cpu",
        # On a GPU a row's logits depend a little on what else the step computes, so drafts would
        # show in the result.
        draft_fixed_tokens=FIXED_TOKENS if drafts and device.type == "cpu" else 0,
    )
    engine = ContinuousBatchingEngine(loaded, config, attention=attention)
    trim_memory()  # what was tried on the way
    return engine


def head_shapes(loaded: LoadedModel) -> tuple[HeadShape, ...]:
    """The different shapes of the model's attention calls, for the self-test."""
    config: Any = loaded.model.config
    num_heads = getattr(config.get_text_config(), "num_attention_heads", None)
    shapes: dict[HeadShape, None] = {}
    for layer in loaded.layers:
        heads = 4 * layer.num_kv_heads
        if isinstance(num_heads, int) and num_heads % layer.num_kv_heads == 0:
            heads = num_heads
        shapes[HeadShape(heads, layer.num_kv_heads, layer.k_dim, layer.v_dim)] = None
    return tuple(shapes)


def kv_cache_bytes_on_gpu(
    loaded: LoadedModel,
    attention: AttentionBackend,
    memory: DeviceMemory,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    fraction: float,
) -> int:
    """What the KV cache may take: of the free memory that the largest step leaves, a fraction."""

    def work() -> None:
        run_largest_step(
            loaded,
            attention,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
        )

    work()  # libraries take memory for themselves when they are used for the first time
    step_bytes = memory.peak_bytes(work)
    sampler_bytes = max_num_seqs * loaded.vocab_size * _SAMPLER_BYTES_PER_LOGIT
    itemsize = next(loaded.model.parameters()).element_size()
    token_bytes = max(layer.bytes_per_token(itemsize) for layer in loaded.layers)
    copied_bytes = max(MAX_GATHERED_TOKENS, loaded.max_model_len) * token_bytes
    free_bytes = memory.free_bytes()
    # Twice the step: graphs have memory of their own, and no step of theirs is larger.
    other_bytes = 2 * step_bytes + sampler_bytes + copied_bytes
    kv_cache_bytes = int((free_bytes - other_bytes) * fraction)
    log.info(
        "memory of the GPU free_bytes=%d step_bytes=%d sampler_bytes=%d copied_bytes=%d "
        "kv_cache_bytes=%d",
        free_bytes,
        step_bytes,
        sampler_bytes,
        copied_bytes,
        kv_cache_bytes,
    )
    return max(kv_cache_bytes, 0)


def run_largest_step(
    loaded: LoadedModel,
    attention: AttentionBackend,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
) -> torch.Tensor:
    """A forward pass with as many tokens and as many rows of logits as a step may have."""
    parameter = next(loaded.model.parameters())
    per_seq, rest = divmod(max_num_batched_tokens, max_num_seqs)
    longest = loaded.max_model_len - 1
    blocks_per_seq = -(-min(per_seq + 1, longest) // block_size)
    scheduled = []
    for n in range(max_num_seqs):
        num_tokens = min(per_seq + (n < rest), longest)
        job = Job((Row(n, str(n)),), (Prompt((0,) * num_tokens),), SamplingParams(1))
        seq = Sequence(str(n), job, n, NOTHING)
        seq.block_table = list(range(n * blocks_per_seq, (n + 1) * blocks_per_seq))
        scheduled.append(Scheduled.next_of(seq, num_tokens))
    cache = KVCache(
        loaded.layers,
        len(scheduled) * blocks_per_seq,
        block_size,
        dtype=parameter.dtype,
        device=parameter.device,
    )
    batch = build_forward_batch(scheduled, block_size, parameter.device)
    return ModelRunner(loaded.model, cache, attention).run(batch)
