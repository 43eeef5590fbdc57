"""Makes the Engine of this machine: its memory, its fastest attention, the limits asked for."""

from __future__ import annotations

from pathlib import Path

from gristmill_worker.attention.choose import choose_attention
from gristmill_worker.engine.engine import ContinuousBatchingEngine, EngineConfig
from gristmill_worker.memory import free_memory_bytes
from gristmill_worker.models.loader import LoadedModel


def build_engine(
    loaded: LoadedModel,
    *,
    cache_dir: Path,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
    block_size: int = 16,
    kv_memory_fraction: float = 0.5,
) -> ContinuousBatchingEngine:
    """The KV cache gets `kv_memory_fraction` of the memory that is free now; a kernel that must be
    compiled first is kept in `cache_dir`. Raises OutOfMemory."""
    parameter = next(loaded.model.parameters())
    attention = choose_attention(
        dtype=parameter.dtype,
        device=parameter.device,
        block_size=block_size,
        cache_dir=cache_dir / "kernels",
    )
    config = EngineConfig(
        kv_cache_bytes=int(free_memory_bytes() * kv_memory_fraction),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
    )
    return ContinuousBatchingEngine(loaded, config, attention=attention)
