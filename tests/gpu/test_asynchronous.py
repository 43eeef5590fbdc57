"""Steps launched ahead on the GPU against the synchronous engine: the same tokens, more of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from drive import run
from large_model import drive, random_llama
from tiny import as_loaded, make_model, prompts

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker import build
from gristmill_worker.engine.engine import ContinuousBatchingEngine, EngineConfig
from gristmill_worker.models.loader import LoadedModel

pytestmark = pytest.mark.gpu


def make_engine(
    loaded: LoadedModel, tmp_path: Path, *, asynchronous: bool, **limits: Any
) -> ContinuousBatchingEngine:
    """As build_engine makes it, but for this one choice."""
    built = build.build_engine(loaded, cache_dir=tmp_path, **limits)
    assert built._config.asynchronous
    if asynchronous:
        return built
    config: EngineConfig = dataclasses.replace(built._config, asynchronous=False)
    attention = built._runner.attention
    del built
    torch.cuda.empty_cache()
    return ContinuousBatchingEngine(loaded, config, attention=attention)


def jobs_of_all_kinds() -> list[tuple[str, Job]]:
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 1, "logprobs": 2},
        {"temperature": 1.0, "seed": 2, "top_p": 0.9},
        {"temperature": 0.8, "seed": 3, "top_k": 5, "stop_token_ids": tuple(range(3, 199, 7))},
        {"temperature": 0.8, "seed": 4, "frequency_penalty": 0.5},
        {"temperature": 0.0, "min_tokens": 6, "logit_bias": ((9, 1.5),)},
    ]
    rows = prompts([1, 3, 9, 16, 20, 33, 70, 5, 41, 8, 12, 30])
    return [
        (
            str(i),
            Job((Row(0, "row"),), (Prompt(tuple(row)),), SamplingParams(16, **wishes[i % 6])),
        )
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_rows_are_those_of_the_synchronous_engine(
    device: torch.device, tmp_path: Path, name: str
) -> None:
    """In float32, where near-ties are rare enough for ids to be compared."""
    loaded = as_loaded(make_model(name), packed=False)
    loaded.model.to(device)
    limits = {"max_num_seqs": 5, "max_num_batched_tokens": 32, "kv_memory_fraction": 0.01}

    ahead, plain = (
        run(make_engine(loaded, tmp_path, asynchronous=choice, **limits), jobs_of_all_kinds())
        for choice in (True, False)
    )

    for seq_id, end in plain.items():
        assert ahead[seq_id].generated.token_ids == end.generated.token_ids
        assert ahead[seq_id].finish_reason == end.finish_reason


def test_a_launch_waits_for_nothing(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch itself raises where the host would wait for the device."""
    loaded = as_loaded(make_model("llama"), packed=False)
    loaded.model.to(device)
    engine = make_engine(
        loaded, tmp_path, asynchronous=True, max_num_seqs=8, kv_memory_fraction=0.01
    )
    run(engine, jobs_of_all_kinds())  # kernels are compiled at their first use
    launch = engine._launcher.launch

    def watched(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(engine._launcher, "launch", watched)
    run(engine, jobs_of_all_kinds())


@pytest.mark.parametrize("num_rows", [1, 16, 64, 256])
def test_tokens_per_second_of_both(device: torch.device, tmp_path: Path, num_rows: int) -> None:
    loaded = random_llama(device)
    length, num_steps = 128, 128
    rates = {}
    for asynchronous in (False, True):
        engine = make_engine(
            loaded,
            tmp_path,
            asynchronous=asynchronous,
            max_num_seqs=num_rows,
            max_num_batched_tokens=4096,
            kv_memory_fraction=0.2,
        )
        drive(engine, num_rows, length, 8)
        prefill_s = drive(engine, num_rows, length, 1)
        took = drive(engine, num_rows, length + 1, 1 + num_steps) - prefill_s
        rates[asynchronous] = num_rows * num_steps / took
        del engine
        torch.cuda.empty_cache()

    print(
        f"\n{num_rows} rows: {rates[False]:,.0f} tokens/s one step at a time, "
        f"{rates[True]:,.0f} launched ahead ({rates[True] / rates[False]:.2f} times)",
        end="",
    )
    assert rates[True] > 0.9 * rates[False]
