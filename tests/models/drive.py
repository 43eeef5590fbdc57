"""Drives an Engine to the end of all its rows, checking its books after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from gristmill.types import Job
from gristmill_worker.attention.base import AttentionBackend
from gristmill_worker.engine.base import Finished
from gristmill_worker.engine.drafter import FIXED_TOKENS
from gristmill_worker.engine.engine import ContinuousBatchingEngine, EngineConfig
from gristmill_worker.engine.forward_batch import ForwardBatch
from gristmill_worker.models.loader import LoadedModel


def make_engine(
    loaded: LoadedModel,
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    attention: AttentionBackend | None = None,
    **limits: Any,
) -> ContinuousBatchingEngine:
    config = EngineConfig(
        kv_cache_bytes=num_blocks * max(1, block_size * loaded.kv_bytes_per_token),
        block_size=block_size,
        **{
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            "draft_fixed_tokens": FIXED_TOKENS,
            **limits,
        },
    )
    return ContinuousBatchingEngine(loaded, config, attention=attention)


def fail_a_step(
    engine: ContinuousBatchingEngine, look: Callable[[ForwardBatch], object] = lambda _: None
) -> None:
    """One step for which the device has no memory; `look` sees what it was told."""

    def fails(batch: ForwardBatch) -> torch.Tensor:
        look(batch)
        raise torch.OutOfMemoryError("no room")

    with patch.object(engine._runner, "run", fails), pytest.raises(torch.OutOfMemoryError):
        engine.step()


def run(
    engine: ContinuousBatchingEngine, jobs: Iterable[tuple[str, Job]], *, max_steps: int = 5000
) -> dict[str, Finished]:
    finished: dict[str, Finished] = {}
    for seq_id, job in jobs:
        engine.add(seq_id, job)
    for _ in range(max_steps):
        if not engine.num_live:
            break
        for end in engine.step().finished:
            assert end.seq_id not in finished, f"{end.seq_id} ended twice"
            finished[end.seq_id] = end
        engine.block_manager.check_integrity(engine.scheduler.running)
    assert not engine.num_live, "rows are left that never ended"
    assert engine.block_manager.num_free_blocks == engine.num_blocks
    return finished
