"""Decode as graphs, with a recorder of operations in the place of CUDA's."""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import Any

import pytest
import torch
from drive import make_engine, run
from recorder import Capture
from tiny import greedy_alone, greedy_job, prompts

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.attention.decode import GatherDecode
from gristmill_worker.attention.paged import PagedAttention
from gristmill_worker.attention.prefill import SdpaPrefill
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.engine.step_graph import ladder
from gristmill_worker.models.packed_weight import pack_model
from gristmill_worker.models.packing import OneDnnPacking
from gristmill_worker.models.probe import CallRecorder, run_three_tokens


def make_attention(*, by_length: bool = False) -> PagedAttention:
    return PagedAttention(GatherDecode(by_length=by_length), SdpaPrefill())


def make_graph_engine(loaded: Any, max_num_seqs: int = 8, **limits: Any) -> tuple[Any, Capture]:
    limits = {"draft_fixed_tokens": 0, "num_blocks": 96, **limits}
    engine = make_engine(loaded, attention=make_attention(), max_num_seqs=max_num_seqs, **limits)
    capture = Capture()
    engine._runner.capture_decode(
        max_num_seqs=max_num_seqs, max_model_len=engine.max_model_len, capture=capture
    )
    assert engine._runner._graphs is not None
    return engine, capture


def test_the_rungs_of_the_ladder() -> None:
    assert ladder(1) == [1]
    assert ladder(3) == [1, 2, 3]
    assert ladder(8) == [1, 2, 4, 8]
    assert ladder(30) == [1, 2, 4, 8, 16, 24, 30]
    assert ladder(64) == [1, 2, 4, *range(8, 65, 8)]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt2", "gpt_neox"])
def test_rows_from_replays_are_those_of_the_model_alone(model_pair: Any, name: str) -> None:
    oracle, loaded = model_pair(name)
    rows = prompts([3, 9, 20, 33, 1, 16, 7])
    engine, capture = make_graph_engine(loaded)

    finished = run(engine, [(str(i), greedy_job(row, 5 + 3 * i)) for i, row in enumerate(rows)])

    for i, row in enumerate(rows):
        expected = greedy_alone(oracle, row, 5 + 3 * i)
        assert list(finished[str(i)].generated.token_ids) == expected
    assert all(capture.replays), "each rung has been replayed: rows end one after the other"


def test_every_decode_step_takes_the_next_higher_rung_and_mixed_steps_none(
    model_pair: Any,
) -> None:
    _, loaded = model_pair("llama")
    engine, capture = make_graph_engine(loaded)
    steps: list[tuple[int, bool, int | None]] = []
    forward, replay = engine._runner.run, dict(engine._runner._graphs._replay)
    taken: list[int] = []
    for rows, graph in replay.items():
        engine._runner._graphs._replay[rows] = lambda rows=rows, graph=graph: (
            taken.append(rows),
            graph(),
        )

    def watched(batch: Any) -> torch.Tensor:
        before = len(taken)
        logits = forward(batch)
        is_decode = bool((batch.metadata.spans[:, 1] == 1).all())
        steps.append(
            (len(batch.metadata.spans), is_decode, taken[-1] if len(taken) > before else None)
        )
        return logits

    engine._runner.run = watched
    jobs = [
        (
            str(i),
            Job((Row(0, "row"),), (Prompt(tuple(row)),), SamplingParams(4 + i, ignore_eos=True)),
        )
        for i, row in enumerate(prompts([30, 5, 60, 7, 2]))
    ]
    run(engine, jobs)

    assert {is_decode for _, is_decode, _ in steps} == {True, False}
    for num_rows, is_decode, rung in steps:
        expected = min(r for r in (1, 2, 4, 8) if r >= num_rows) if is_decode else None
        assert rung == expected
    assert sum(capture.replays) == len(taken)


@pytest.fixture(scope="module")
def packed_by_torch(model_pair: Any) -> Any:
    """A model whose layers give a row the same bits anywhere, by operations that a recorder sees:
    our own kernels are called past torch, and run on no GPU."""
    if not OneDnnPacking.is_available():
        pytest.skip("needs oneDNN")
    _, plain = model_pair("qwen3")
    model = copy.deepcopy(plain.model)
    pack_model(model, OneDnnPacking(), lambda: run_three_tokens(model, CallRecorder()))
    return dataclasses.replace(plain, model=model)


@pytest.mark.parametrize("num_rows", [3, 5, 7])
def test_rows_that_pad_change_no_bit_of_the_others(packed_by_torch: Any, num_rows: int) -> None:
    """On a rung that is too high, and on one of just so many rows."""
    rows = prompts([11, 4, 25, 16, 9, 1, 8])[:num_rows]
    logits: list[list[torch.Tensor]] = []
    for max_num_seqs in (num_rows, 8):
        engine, capture = make_graph_engine(packed_by_torch, max_num_seqs)
        seen: list[torch.Tensor] = []
        forward = engine._runner.run
        engine._runner.run = lambda batch, forward=forward, seen=seen: (
            seen.append(forward(batch).clone()) or seen[-1].clone()
        )
        run(engine, [(str(i), greedy_job(row, 6, ignore_eos=True)) for i, row in enumerate(rows)])
        assert sum(capture.replays) >= 3
        logits.append(seen)

    for one, other in zip(*logits, strict=True):
        assert torch.equal(one, other)


def test_padding_never_touches_a_block_of_a_row(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine, _ = make_graph_engine(loaded)
    run(engine, [(str(i), greedy_job(row, 9)) for i, row in enumerate(prompts([9, 4, 7]))])
    cache = engine._runner.kv_cache
    before = [layer.keys[:-1].clone() for layer in cache.layers]

    with torch.inference_mode():
        engine._runner._graphs._pad(0, 8)
        engine._runner._graphs._replay[8]()

    assert cache.scratch_block == engine.num_blocks == len(cache.layers[0].keys) - 1
    for layer, keys in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys[:-1].nan_to_num(7), keys.nan_to_num(7))


def test_a_replay_reads_the_step_from_the_buffers(model_pair: Any) -> None:
    """Blocks, lengths and slots of a later step are others than those that were recorded."""
    oracle, loaded = model_pair("llama")
    engine, capture = make_graph_engine(loaded, max_num_seqs=1)
    first, second = prompts([3, 40], seed=5)

    for name, row in (("first", first), ("second", second), ("again", first)):
        found = run(engine, [(name, greedy_job(row, 20))])[name].generated.token_ids
        assert list(found) == greedy_alone(oracle, row, 20)
    assert capture.replays[0] > 20


def test_a_chunk_of_one_token_wants_no_logits(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    engine, capture = make_graph_engine(loaded, max_num_seqs=4, max_num_batched_tokens=4)
    rows = prompts([4, 4, 7, 13])

    finished = run(engine, [(str(i), greedy_job(row, 8)) for i, row in enumerate(rows)])

    for i, row in enumerate(rows):
        assert list(finished[str(i)].generated.token_ids) == greedy_alone(oracle, row, 8)
    assert sum(capture.replays) > 0


def test_what_a_graph_cannot_hold_runs_without(
    model_pair: Any, caplog: pytest.LogCaptureFixture
) -> None:
    oracle, loaded = model_pair("llama")
    [prompt] = prompts([9])

    def fails(step: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    for attention, reason in (
        (ReferenceAttention(), "reads its step on the host"),
        (make_attention(by_length=True), "reads its step on the host"),
        (make_attention(), "not permitted"),
    ):
        engine = make_engine(loaded, attention=attention)
        with caplog.at_level(logging.INFO):
            engine._runner.capture_decode(
                max_num_seqs=8, max_model_len=engine.max_model_len, capture=fails
            )
        assert reason in caplog.text
        caplog.clear()
        found = run(engine, [("row", greedy_job(prompt, 9))])["row"].generated.token_ids
        assert list(found) == greedy_alone(oracle, prompt, 9)


def test_the_recorder_refuses_what_cuda_refuses() -> None:
    """A model that looks at the value of a tensor, as some routers do, is not captured."""
    with pytest.raises(RuntimeError, match="value of a tensor"):
        Capture()(lambda: print(int(torch.ones(1).sum())))
