"""Parameters of a row through the Engine: they mean the same in company and after preemption."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from drive import make_engine, run
from tiny import EOS, greedy_alone, greedy_job, prompts

from gristmill.types import FinishReason, Job, Prompt, Row, SamplingParams
from gristmill_worker.choices import of_choice


def greedy_with_penalties(
    model: Any, prompt: list[int], num_tokens: int, frequency: float, presence: float, rep: float
) -> list[int]:
    """Greedy ids of one row alone, by the formula, each from a full pass without a cache."""
    ids, output = list(prompt), Counter[int]()
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
            for token_id in set(ids):
                logits[token_id] *= rep if logits[token_id] < 0 else 1 / rep
            for token_id, count in output.items():
                logits[token_id] -= count * frequency + presence
            ids.append(int(logits.argmax()))
            output[ids[-1]] += 1
    return ids[len(prompt) :]


def test_B25_B29_penalties_are_the_rows_own_also_after_preemption(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    rows = prompts([16, 17, 18, 19])
    penalties = {"frequency_penalty": 2.0, "presence_penalty": 2.0, "repetition_penalty": 1.5}
    jobs = [
        (str(i), greedy_job(row, 40, ignore_eos=True, **(penalties if i % 2 else {})))
        for i, row in enumerate(rows)
    ]
    # Room for two of four rows at their full length.
    engine = make_engine(loaded, num_blocks=30, expected_output_tokens=1.0)

    finished = run(engine, jobs)

    assert engine.num_blocks * 4 == 120
    plain = [greedy_alone(oracle, row, 40, eos=False) for row in rows]
    for i, row in enumerate(rows):
        expected = greedy_with_penalties(oracle, row, 40, 2.0, 2.0, 1.5) if i % 2 else plain[i]
        assert list(finished[str(i)].generated.token_ids) == expected
        assert i % 2 == 0 or expected != plain[i], "the penalties change nothing here"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_B24_tiny_temperatures_are_greedy_in_half_precision(
    model_pair: Any, dtype: torch.dtype
) -> None:
    _, loaded = model_pair("llama")
    loaded = replace(loaded, model=copy.deepcopy(loaded.model).to(dtype))
    rows = [
        *({"temperature": t} for t in (0.0, 1e-6, 1e-5, 1e-4, 1e-3)),
        {"temperature": 1.0, "top_p": 1e-4},
    ]
    engine = make_engine(loaded)
    for i, params in enumerate(rows):
        sampling = SamplingParams(12, seed=i, logprobs=1, ignore_eos=True, **params)
        engine.add(str(i), Job((Row(i, str(i)),), (Prompt((5, 9, 77)),), sampling))

    ends = run(engine, [])

    for i in range(len(rows)):
        assert ends[str(i)].generated.token_ids == ends["0"].generated.token_ids
        assert all(math.isfinite(at.logprob) for at in ends[str(i)].generated.logprobs)


def test_min_tokens_puts_off_every_end(model_pair: Any) -> None:
    _, loaded = model_pair("qwen3")
    [prompt] = prompts([9])
    ends = {"logit_bias": ((EOS, 100.0), (7, 90.0)), "stop_token_ids": (7,)}

    finished = run(
        make_engine(loaded),
        [
            ("none", greedy_job(prompt, 9, **ends)),
            ("five", greedy_job(prompt, 9, min_tokens=5, **ends)),
            ("all", greedy_job(prompt, 9, min_tokens=9, **ends)),
            ("eos", greedy_job(prompt, 9, min_tokens=5, ignore_eos=True, **ends)),
        ],
    )

    ids = {name: list(end.generated.token_ids) for name, end in finished.items()}
    assert ids["none"] == [EOS]
    assert len(ids["five"]) == 6 and ids["five"][-1] == EOS
    assert not {EOS, 7} & {*ids["five"][:-1]} and not {EOS, 7} & {*ids["all"]}
    assert finished["five"].finish_reason is FinishReason.STOP
    assert len(ids["all"]) == 9 and finished["all"].finish_reason is FinishReason.LENGTH
    assert ids["eos"] == [EOS] * 9  # no end any more, so it may come early


def test_a_stop_token_ends_the_row_and_has_no_text_unless_asked(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    [prompt] = prompts([5])
    free = run(make_engine(loaded), [("row", greedy_job(prompt, 6, ignore_eos=True))])["row"]
    stop_id = free.generated.token_ids[3]
    assert stop_id not in free.generated.token_ids[:3]
    stop = {"stop_token_ids": (stop_id,), "ignore_eos": True}

    finished = run(
        make_engine(loaded),
        [
            ("without", greedy_job(prompt, 6, **stop)),
            ("with", greedy_job(prompt, 6, include_stop_str_in_output=True, **stop)),
        ],
    )

    for end in finished.values():
        assert end.generated.token_ids == free.generated.token_ids[:4]
        assert end.finish_reason is FinishReason.STOP and end.usage.completion_tokens == 4
    assert finished["with"].text == finished["without"].text + f"<{stop_id}>"


def test_a_row_that_forbids_everything_fails_alone(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    [prompt] = prompts([5])
    nothing = greedy_job(prompt, 6, min_tokens=2, stop_token_ids=tuple(range(199)))

    finished = run(make_engine(loaded), [("bad", nothing), ("good", greedy_job(prompt, 6))])

    error = finished["bad"].error
    assert error is not None and "no token possible" in error.message
    assert list(finished["good"].generated.token_ids) == greedy_alone(oracle, prompt, 6)


def test_choices_of_one_row_prefill_their_prompt_once(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    [prompt] = prompts([33])  # eight Blocks of four, and one token
    row = Job(
        (Row(0, "r"),), (Prompt(tuple(prompt)),), SamplingParams(6, seed=5, n=4, ignore_eos=True)
    )
    engine = make_engine(loaded)
    for i in range(4):
        engine.add(str(i), of_choice(row, i))

    num_prefilled, answers = 0, {}
    while engine.num_live:
        output = engine.step()
        num_prefilled += output.num_prefill_tokens
        answers |= {end.seq_id: end.generated.token_ids for end in output.finished}

    assert num_prefilled == 33 + 3
    assert len(set(answers.values())) == 4
    for i in range(4):
        alone = run(make_engine(loaded), [("row", of_choice(row, i))])["row"]
        assert answers[str(i)] == alone.generated.token_ids
