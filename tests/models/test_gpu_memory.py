"""What is measured before the KV cache of a GPU gets the rest, with memory that is made up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill_worker.attention.decode import GatherDecode
from gristmill_worker.attention.paged import PagedAttention
from gristmill_worker.attention.prefill import SdpaPrefill
from gristmill_worker.build import build_engine, head_shapes, kv_cache_bytes_on_gpu
from gristmill_worker.models.hook import forward_context
from gristmill_worker.models.probe import CallRecorder

LIMITS: dict[str, Any] = {"max_num_seqs": 7, "max_num_batched_tokens": 100, "block_size": 16}


class MadeUpMemory:
    def __init__(self, free: int, peak: int) -> None:
        self._free, self._peak = free, peak
        self.works = 0

    def free_bytes(self) -> int:
        return self._free

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        self.works += 1
        return self._peak


@pytest.fixture
def forwards(model_pair: Any) -> Any:
    """The model, and the shapes of what goes through it."""
    _, loaded = model_pair("llama")
    seen: list[tuple[int, int]] = []
    hook = loaded.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (kwargs["input_ids"].shape[1], len(kwargs["logits_to_keep"]))
        ),
        with_kwargs=True,
    )
    yield loaded, seen
    hook.remove()


def test_the_largest_step_is_run_and_its_memory_kept_free(
    forwards: Any, caplog: pytest.LogCaptureFixture
) -> None:
    loaded, seen = forwards
    memory = MadeUpMemory(free=10**9, peak=10**8)
    attention = PagedAttention(GatherDecode(), SdpaPrefill())

    with caplog.at_level(logging.INFO):
        found = kv_cache_bytes_on_gpu(loaded, attention, memory, fraction=0.9, **LIMITS)

    assert memory.works == 1
    assert set(seen) == {(100, 7)}  # all the tokens and all the rows of logits of one step
    sampler_bytes = 7 * loaded.vocab_size * 48
    copied_bytes = (1 << 16) * loaded.layers[0].bytes_per_token(4)
    assert found == int(0.9 * (10**9 - 2 * 10**8 - sampler_bytes - copied_bytes))
    assert (
        f"free_bytes=1000000000 step_bytes=100000000 sampler_bytes={sampler_bytes}" in caplog.text
    )
    assert f"kv_cache_bytes={found}" in caplog.text


def test_where_nothing_is_left_there_is_no_cache(forwards: Any) -> None:
    loaded, _ = forwards
    memory = MadeUpMemory(free=10**6, peak=10**8)

    found = kv_cache_bytes_on_gpu(
        loaded, PagedAttention(GatherDecode(), SdpaPrefill()), memory, fraction=0.9, **LIMITS
    )

    assert found == 0


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "gpt_neox"])
def test_the_self_test_takes_the_shapes_of_the_model(model_pair: Any, name: str) -> None:
    _, loaded = model_pair(name)
    recorder = CallRecorder()
    with torch.inference_mode(), forward_context(recorder):
        loaded.model(
            input_ids=torch.tensor([[5]]), position_ids=torch.tensor([[0]]), use_cache=False
        )

    seen = {
        (call.query.shape[1], call.key.shape[1], call.key.shape[3], call.value.shape[3])
        for call in recorder.calls
    }

    assert seen == {(s.num_heads, s.num_kv_heads, s.k_dim, s.v_dim) for s in head_shapes(loaded)}


def test_a_cpu_gets_half_of_what_is_free_and_holds_no_graphs(
    model_pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loaded = model_pair("llama")
    monkeypatch.setattr("gristmill_worker.build.free_memory_bytes", lambda: 10**6)
    tokens = 5 * 10**5 // loaded.kv_bytes_per_token

    engine = build_engine(loaded, cache_dir=tmp_path)

    assert engine.num_blocks == tokens // 16
    assert engine._runner._graphs is None
