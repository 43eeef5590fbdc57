"""The Engine through its door: resume, cancel, refusals, seeds, times, bad logits."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from drive import make_engine, run
from tiny import greedy_alone, greedy_job, prompts

from gristmill.errors import OutOfMemory
from gristmill.types import FinishReason, Job, Prompt, Row, SamplingParams
from gristmill_worker.engine.base import Finished, Generated
from gristmill_worker.engine.engine import ContinuousBatchingEngine, EngineConfig


def sampled_job(prompt_ids: list[int], max_tokens: int, seed: int, **params: Any) -> Job:
    sampling = SamplingParams(max_tokens, seed=seed, ignore_eos=True, **params)
    return Job((Row(0, "row"),), (Prompt(tuple(prompt_ids)),), sampling)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize("at", [1, 5, 11])
def test_a_resumed_row_goes_on_as_if_nothing_had_happened(
    model_pair: Any, name: str, at: int
) -> None:
    _, loaded = model_pair(name)
    [prompt] = prompts([13])
    job = sampled_job(prompt, 12, seed=99, temperature=1.3, top_p=0.95)
    whole = run(make_engine(loaded), [("row", job)])["row"].generated.token_ids
    engine = make_engine(loaded)

    engine.add("row", job, Generated(whole[:at], tuple(range(at))))
    decoded, finished = 0, None
    while engine.num_live:
        output = engine.step()
        decoded += output.num_decode_tokens
        finished = next(iter(output.finished), finished)

    assert finished is not None and finished.generated.token_ids == whole
    assert decoded == 12 - at  # prefill repeats, decoding does not
    assert finished.generated.times_ms[:at] == tuple(range(at))


def test_an_answer_that_had_ended_where_the_memory_ends_is_not_refused_on_resume(
    model_pair: Any,
) -> None:
    """Other answers to the same prompt ran on when its Worker went."""
    _, loaded = model_pair("llama")
    [prompt] = prompts([5])
    job = greedy_job(prompt, 100, ignore_eos=True)
    whole = run(make_engine(loaded, num_blocks=6), [("row", job)])["row"]
    engine = make_engine(loaded, num_blocks=6)
    engine.add("row", job, whole.generated)

    again = run(engine, [])["row"]

    assert len(whole.generated.token_ids) == 19 and again.error is None
    assert again.generated == whole.generated and again.finish_reason is FinishReason.LENGTH


def test_seeded_rows_do_not_depend_on_their_company(model_pair: Any) -> None:
    _, loaded = model_pair("qwen3")
    rows = prompts([3, 9, 20, 33])
    jobs = [sampled_job(row, 10, seed=i, temperature=0.9) for i, row in enumerate(rows)]
    alone = [run(make_engine(loaded), [("row", job)])["row"].generated.token_ids for job in jobs]

    together = run(make_engine(loaded), [(str(i), job) for i, job in enumerate(jobs)])
    crowded = run(
        make_engine(loaded, num_blocks=20, expected_output_tokens=1.0),
        [(str(i), job) for i, job in reversed(list(enumerate(jobs)))],
    )

    assert [together[str(i)].generated.token_ids for i in range(4)] == alone
    assert [crowded[str(i)].generated.token_ids for i in range(4)] == alone


def test_another_seed_is_another_answer(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    [prompt] = prompts([9])
    answers = {
        run(make_engine(loaded), [("row", sampled_job(prompt, 8, seed=seed))])[
            "row"
        ].generated.token_ids
        for seed in range(5)
    }

    assert len(answers) == 5


def test_B26_prompt_and_output_never_exceed_the_window(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    window = dataclasses.replace(loaded, max_model_len=64)
    rows = prompts([63, 64, 65, 60])
    jobs = [(str(i), greedy_job(row, 100, ignore_eos=True)) for i, row in enumerate(rows)]

    finished = run(make_engine(window), jobs)

    assert finished["0"].usage.completion_tokens == 1
    assert finished["0"].finish_reason is FinishReason.LENGTH
    assert finished["3"].usage.completion_tokens == 4
    for i in ("1", "2"):
        error = finished[i].error
        assert error is not None and error.code == "context_length_exceeded"
        assert str(len(rows[int(i)])) in error.message and "64" in error.message


def test_a_row_that_can_never_fit_into_the_cache_fails_at_once(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    long, short = prompts([50, 10])
    engine = make_engine(loaded, num_blocks=8, block_size=4)

    finished = run(engine, [("long", greedy_job(long, 4)), ("short", greedy_job(short, 4))])

    assert finished["long"].error is not None
    assert "KV cache holds 32" in finished["long"].error.message
    assert list(finished["short"].generated.token_ids) == greedy_alone(oracle, short, 4)


def test_B71_an_empty_prompt_is_an_error_of_its_row_only(model_pair: Any) -> None:
    oracle, loaded = model_pair("gpt2")
    [good] = prompts([6])

    finished = run(
        make_engine(loaded), [("empty", greedy_job([], 4)), ("good", greedy_job(good, 4))]
    )

    assert finished["empty"].error is not None and finished["empty"].error.status_code == 400
    assert list(finished["good"].generated.token_ids) == greedy_alone(oracle, good, 4)


def test_cancelled_rows_leave_no_trace(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    rows = prompts([9, 12, 30, 7])
    engine = make_engine(loaded, max_num_seqs=2)
    for i, row in enumerate(rows):
        engine.add(str(i), greedy_job(row, 8))
    engine.add("never", greedy_job([], 8))
    engine.step()

    engine.cancel("0")  # running
    engine.cancel("3")  # waiting
    engine.cancel("unknown")
    finished = run(engine, [])

    assert set(finished) == {"1", "2"}
    for i in (1, 2):
        expected = greedy_alone(oracle, rows[i], 8)
        assert list(finished[str(i)].generated.token_ids) == expected


def test_a_row_with_nan_fails_alone(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    broken = copy.deepcopy(loaded.model)
    with torch.no_grad():
        broken.get_input_embeddings().weight[150] = float("nan")  # type: ignore[operator]
        broken.lm_head.weight.copy_(loaded.model.lm_head.weight)  # type: ignore[union-attr,operator]
    good = [3, 4, 5, 6]

    finished = run(
        make_engine(dataclasses.replace(loaded, model=broken)),
        [("nan", greedy_job([3, 150, 4], 4)), ("good", greedy_job(good, 4))],
    )

    assert finished["nan"].error is not None
    assert finished["nan"].error.code == "model_output_invalid"
    assert list(finished["good"].generated.token_ids) == greedy_alone(oracle, good, 4)


def test_times_are_measured_for_every_token(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    now = [100.0]
    config = EngineConfig(kv_cache_bytes=2**20, block_size=4, max_num_batched_tokens=64)
    engine = ContinuousBatchingEngine(loaded, config, clock=lambda: now[0])
    [prompt] = prompts([100])
    engine.add("row", greedy_job(prompt, 4, ignore_eos=True))

    ends: list[Finished] = []
    while engine.num_live:
        now[0] += 0.25
        ends += engine.step().finished

    [finished] = ends
    assert finished.generated.times_ms == (500, 750, 1000, 1250)
    assert (finished.queue_s, finished.prefill_s) == (0.25, 0.25)  # a step that takes no time


def test_too_little_memory_is_said_at_the_start(model_pair: Any) -> None:
    _, loaded = model_pair("llama")

    with pytest.raises(OutOfMemory, match="one Block of 16 tokens takes 8,192"):
        ContinuousBatchingEngine(loaded, EngineConfig(kv_cache_bytes=1000))
