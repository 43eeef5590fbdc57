"""Draft tokens save steps and change nothing: not an id, not a log-probability, not an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from drive import make_engine
from tiny import greedy_job, prompts

from gristmill.types import Job
from gristmill_worker.engine.base import Finished
from gristmill_worker.engine.engine import ContinuousBatchingEngine

PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {"ignore_eos": True},
    "end tokens": {},
    "log-probabilities": {"logprobs": 3, "ignore_eos": True},
    "sampled": {"temperature": 0.05, "seed": 7, "ignore_eos": True},
    "sampled widely": {"temperature": 1.0, "seed": 8, "top_p": 0.9, "logprobs": 0},
    "min_tokens": {"min_tokens": 25},
    "bias": {"logit_bias": ((5, 3.0), (6, -100.0)), "ignore_eos": True},
    "a loop": {"logit_bias": ((5, 100.0),), "logprobs": 1, "ignore_eos": True},
    "two words": {"logit_bias": ((5, 100.0), (6, 100.0)), "temperature": 0.7, "ignore_eos": True},
    "penalties": {"frequency_penalty": 0.5, "ignore_eos": True},
}


def job(row: list[int], max_tokens: int, *, temperature: float = 0.0, **params: Any) -> Job:
    greedy = greedy_job(row, max_tokens, **params)
    return replace(greedy, params=replace(greedy.params, temperature=temperature))


def run(engine: ContinuousBatchingEngine, jobs: dict[str, Job]) -> tuple[dict[str, Finished], int]:
    """How the rows ended, and the number of steps."""
    for seq_id, job in jobs.items():
        engine.add(seq_id, job)
    finished: dict[str, Finished] = {}
    num_steps = 0
    while engine.num_live:
        output = engine.step()
        num_steps += 1
        finished |= {end.seq_id: end for end in output.finished}
        engine.block_manager.check_integrity(engine.scheduler.running)
    assert engine.block_manager.num_free_blocks == engine.num_blocks
    return finished, num_steps


def result(end: Finished) -> Any:
    generated = end.generated
    ids, logprobs = list(generated.token_ids), list(generated.logprobs)
    return ids, logprobs, end.text, end.finish_reason, end.usage


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_row_is_the_same_with_drafts(name: str, model_pair: Any, compiled: Any) -> None:
    _, loaded = model_pair("llama", packed=True)
    loop = [5, 6, 7, 8] * 5
    rows = [*prompts([1, 3, 9, 20], seed=3), loop, loop[:-1]]
    jobs = {str(i): job(row, 40, **PARAMETERS[name]) for i, row in enumerate(rows)}
    limits = {"block_size": 16, "attention": compiled, "max_num_batched_tokens": 64}
    limits["max_num_seqs"] = 32

    plain, num_plain_steps = run(make_engine(loaded, draft_fixed_tokens=0, **limits), jobs)
    eager, num_eager_steps = run(make_engine(loaded, draft_fixed_tokens=10_000, **limits), jobs)

    for seq_id in jobs:
        assert result(eager[seq_id]) == result(plain[seq_id])
    if name == "a loop":
        assert num_eager_steps < num_plain_steps / 2
    if name == "two words":  # some drafts come true, others do not
        assert num_eager_steps < num_plain_steps
    if name == "penalties":
        assert num_eager_steps == num_plain_steps


def test_a_row_with_drafts_ends_at_its_limit_and_at_the_window(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(loaded, num_blocks=8, draft_fixed_tokens=10_000)  # a window of 32
    jobs = {
        "limit": greedy_job([5] * 10, 7, ignore_eos=True),
        "window": greedy_job([5] * 10, 500, ignore_eos=True),
    }

    finished, _ = run(engine, jobs)

    assert finished["limit"].usage.completion_tokens == 7
    assert finished["window"].usage.completion_tokens == 22


def test_all_tokens_of_a_step_are_counted(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(loaded, draft_fixed_tokens=10_000)
    engine.add("row", greedy_job([5, 6] * 10, 60, ignore_eos=True))
    num_prefill = num_decode = 0

    while engine.num_live:
        output = engine.step()
        num_prefill += output.num_prefill_tokens
        num_decode += output.num_decode_tokens

    assert (num_prefill, num_decode) == (20, 59)  # the prompt yields the first token


def test_drafts_take_the_places_of_absent_rows_only(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(loaded, max_num_seqs=3, draft_fixed_tokens=10_000)
    for i in range(3):
        engine.add(str(i), greedy_job([5, 6] * 6, 8 + 20 * (i == 0), ignore_eos=True))
    plans = []
    schedule = engine.scheduler.schedule
    engine.scheduler.schedule = lambda: plans.append(schedule()) or plans[-1]  # type: ignore[method-assign,func-returns-value]

    while engine.num_live:
        engine.step()

    num_drafts = [[len(item.drafts) for item in plan.scheduled] for plan in plans]
    assert all(len(drafts) + sum(drafts) <= 3 for drafts in num_drafts)
    assert any(sum(drafts) == 2 for drafts in num_drafts if len(drafts) == 1)
