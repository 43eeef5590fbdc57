"""Rows of the Engine on the GPU against the model alone, and the speed of whole steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drive import run
from large_model import drive, num_parameters, random_llama
from limits import bytes_per_s, flops, show
from tiny import ARCHITECTURES, as_loaded, greedy_job, make_model, prompts

from gristmill_worker.build import build_engine
from gristmill_worker.models.loader import LoadedModel

pytestmark = pytest.mark.gpu


def greedy_alone_on(model: Any, prompt_ids: list[int], max_tokens: int) -> list[int]:
    ids = list(prompt_ids)
    with torch.inference_mode():
        for _ in range(max_tokens):
            input_ids = torch.tensor([ids], device=model.device)
            ids.append(int(model(input_ids, use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt_ids) :]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_rows_are_those_of_the_model_alone(
    device: torch.device, tmp_path: Path, name: str
) -> None:
    """With graphs, and in float32, where near-ties are rare enough for ids to be compared."""
    oracle: Any = make_model(name)
    loaded = as_loaded(oracle, packed=False)
    loaded.model.to(device)
    oracle.to(device)
    rows = prompts([1, 3, 9, 16, 20, 33, 70])
    engine = build_engine(
        loaded,
        cache_dir=tmp_path,
        max_num_seqs=5,
        max_num_batched_tokens=32,
        kv_memory_fraction=0.01,
    )

    finished = run(
        engine, [(str(i), greedy_job(row, 12, ignore_eos=True)) for i, row in enumerate(rows)]
    )

    for i, row in enumerate(rows):
        expected = greedy_alone_on(oracle, row, 12)
        assert list(finished[str(i)].generated.token_ids) == expected


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_replays_and_eager_steps_pick_the_same_tokens_in_bfloat16(
    device: torch.device, tmp_path: Path, name: str
) -> None:
    loaded = as_loaded(make_model(name), packed=False)
    loaded.model.to(device, torch.bfloat16)
    rows = prompts([1, 3, 9, 16, 20, 33, 70, 5])
    answers = []
    for has_graphs in (True, False):
        engine = build_engine(loaded, cache_dir=tmp_path, max_num_seqs=8, kv_memory_fraction=0.01)
        assert engine._runner._graphs is not None
        if not has_graphs:
            engine._runner._graphs = None
        finished = run(
            engine, [(str(i), greedy_job(row, 16, ignore_eos=True)) for i, row in enumerate(rows)]
        )
        answers.append([list(finished[str(i)].generated.token_ids) for i in range(len(rows))])

    same = sum(one == other for one, other in zip(*answers, strict=True))
    print(f"\n{same} of {len(rows)} rows have the same ids with and without graphs", end="")
    # Padding changes the number of rows of a product, and with it the last bits of bfloat16.
    assert same >= len(rows) // 2


@pytest.fixture(scope="module")
def large(device: torch.device) -> LoadedModel:
    return random_llama(device)


@pytest.mark.parametrize("num_rows", [1, 16, 64, 256])
def test_decode_against_the_speed_of_memory(
    device: torch.device, tmp_path: Path, large: LoadedModel, num_rows: int
) -> None:
    engine = build_engine(
        large,
        cache_dir=tmp_path,
        max_num_seqs=num_rows,
        max_num_batched_tokens=4096,
        kv_memory_fraction=0.5,
    )
    length, num_steps = 512, 128
    drive(engine, num_rows, 16, 4)
    prefill_s = drive(engine, num_rows, length, 1)

    took = drive(engine, num_rows, length + 1, 1 + num_steps) - prefill_s

    assert engine.block_manager.num_free_blocks == engine.num_blocks
    weights = 2 * num_parameters(large)
    cache = num_rows * (length + num_steps // 2) * large.kv_bytes_per_token
    step_ms = 1000 * took / num_steps
    print(
        f"\n{num_rows} rows: {num_rows * num_steps / took:,.0f} tokens/s, {step_ms:.2f} ms", end=""
    )
    show("memory", num_steps * (weights + cache) / took, bytes_per_s(device), "GB/s")


@pytest.mark.parametrize("length", [128, 1024, 4096])
def test_prefill_against_the_matrix_units(
    device: torch.device, tmp_path: Path, large: LoadedModel, length: int
) -> None:
    engine = build_engine(
        large,
        cache_dir=tmp_path,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        kv_memory_fraction=0.5,
    )
    num_rows = 64 * 1024 // length
    drive(engine, num_rows, 16, 1)

    took = drive(engine, num_rows, length, 1)

    assert engine.block_manager.num_free_blocks == engine.num_blocks
    num_tokens = num_rows * length
    products = 2 * num_parameters(large) * num_tokens
    attention = 2 * 16 * 32 * 64 * num_rows * length**2
    print(f"\n{num_rows} x {length}: {num_tokens / took:,.0f} tokens/s", end="")
    show("products", (products + attention) / took, flops(device, torch.bfloat16), "TFLOP/s")


def test_the_cache_fills_what_is_free(
    device: torch.device, tmp_path: Path, large: LoadedModel
) -> None:
    """The largest steps run in the memory that is left beside it."""
    engine = build_engine(large, cache_dir=tmp_path, max_num_seqs=256, max_num_batched_tokens=4096)

    free, total = torch.cuda.mem_get_info(device)
    print(f"\n{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free beside the cache", end="")
    drive(engine, 256, 300, 4)

    assert engine.block_manager.num_free_blocks == engine.num_blocks
