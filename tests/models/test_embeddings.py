"""Vectors of models that generate: the oracle's, the same bits in any company, chunk and cache."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from drive import make_engine, run
from packed import as_engine_takes_it
from shrink import make_oracle
from tiny import greedy_alone, greedy_job, prompts

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.types import FinishReason, Job, JobKind, Prompt, Row, SamplingParams
from gristmill_worker.engine.engine import ContinuousBatchingEngine

LENGTHS = [1, 15, 16, 17, 40, 90]
SETTINGS: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 16, "max_num_seqs": 3},
    {"max_num_batched_tokens": 33, "max_num_seqs": 2, "prefix_caching": False},
    {"max_num_batched_tokens": 512, "max_num_seqs": 8},
]


def embed_job(prompt_ids: list[int], pooling: Pooling, *, normalize: bool = True) -> Job:
    params = EmbeddingParams(pooling, normalize)
    sampling = SamplingParams(0, temperature=0.0)
    return Job((Row(0, "row"),), (Prompt(tuple(prompt_ids)),), sampling, JobKind.EMBED, params)


@torch.inference_mode()
def plain_vector(oracle: Any, prompt: list[int], pooling: Pooling) -> torch.Tensor:
    """From the last hidden states that the model itself reports, of the prompt alone."""
    output = oracle(torch.tensor([prompt]), use_cache=False, output_hidden_states=True)
    states = output.hidden_states[-1][0]
    pooled = {Pooling.MEAN: states.mean(0), Pooling.LAST: states[-1], Pooling.CLS: states[0]}
    return pooled[pooling] / pooled[pooling].norm()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3", "gpt2", "gpt_oss"])
@pytest.mark.parametrize("pooling", Pooling)
def test_vectors_are_those_of_the_model_alone(model_pair: Any, name: str, pooling: Pooling) -> None:
    oracle, loaded = model_pair(name)
    rows = prompts(LENGTHS)
    engine = make_engine(loaded, num_blocks=256)

    ends = run(engine, [(str(i), embed_job(row, pooling)) for i, row in enumerate(rows)])

    for i, row in enumerate(rows):
        end = ends[str(i)]
        expected = plain_vector(oracle, row, pooling)
        assert (torch.tensor(end.embedding) - expected).abs().max() < 1e-5
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(row), 0)
        assert (end.finish_reason, end.text) == (FinishReason.LENGTH, "")
        assert end.prefill_s is not None and end.prefill_s > 0


def vectors_of(engine: ContinuousBatchingEngine, jobs: dict[str, Job]) -> dict[str, Any]:
    return {seq_id: end.embedding for seq_id, end in run(engine, jobs.items()).items()}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("pooling", Pooling)
def test_B33_a_vector_has_the_same_bits_in_any_company(
    model_pair: Any, name: str, pooling: Pooling, compiled: Any
) -> None:
    _, loaded = model_pair(name, packed=True)
    rows = prompts(LENGTHS)
    rows += [rows[-1][:48] + rows[1], rows[-1]]  # prefixes that the cache knows
    jobs = {str(i): embed_job(row, pooling) for i, row in enumerate(rows)}
    # Beside rows that generate, and one that is scored.
    others = {f"g{i}": greedy_job(row, 12, ignore_eos=True) for i, row in enumerate(rows[:4])}
    scored = Job((Row(0, "s"),), (Prompt(tuple(rows[4]), 1),), SamplingParams(0), JobKind.SCORE)
    fast = {"block_size": 16, "attention": compiled}

    alone: dict[str, Any] = {}
    for seq_id, job in jobs.items():
        alone |= vectors_of(make_engine(loaded, **fast), {seq_id: job})
    for settings in SETTINGS:
        engine = make_engine(loaded, num_blocks=64, **fast, **settings)
        company = dict(reversed([*jobs.items(), *others.items(), ("s", scored)]))
        found = vectors_of(engine, company)

        assert {seq_id: found[seq_id] for seq_id in jobs} == alone
        again = vectors_of(engine, dict(reversed(jobs.items())))
        assert again == alone


def test_beside_vectors_rows_generate_what_they_generate_alone(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    rows = prompts([7, 20, 33])
    jobs = {f"e{i}": embed_job(row, Pooling.MEAN) for i, row in enumerate(rows)}
    jobs |= {f"g{i}": greedy_job(row, 9) for i, row in enumerate(rows)}

    ends = run(make_engine(loaded, max_num_batched_tokens=16), jobs.items())

    for i, row in enumerate(rows):
        expected = greedy_alone(oracle, row, 9)
        assert list(ends[f"g{i}"].generated.token_ids) == expected


@pytest.mark.parametrize("pooling", Pooling)
def test_only_the_last_token_may_come_from_behind_a_cached_prefix(
    model_pair: Any, pooling: Pooling
) -> None:
    _, loaded = model_pair("llama")
    [row] = prompts([40])
    engine = make_engine(loaded, num_blocks=64)

    first = run(engine, [("a", embed_job(row, pooling))])["a"]
    second = run(engine, [("a", embed_job(row, pooling))])["a"]

    assert second.usage.cached_tokens == (39 if pooling is Pooling.LAST else 0)
    assert torch.allclose(torch.tensor(first.embedding), torch.tensor(second.embedding), atol=1e-6)


@pytest.mark.parametrize("pooling", Pooling)
def test_a_preempted_prompt_is_pooled_anew(model_pair: Any, pooling: Pooling) -> None:
    oracle, loaded = model_pair("llama")
    rows = prompts([60, 60, 60], seed=5)
    # Room for 120 tokens. Rows that generate grow and push the last prompt out.
    engine = make_engine(
        loaded,
        num_blocks=30,
        max_num_batched_tokens=8,
        prefix_caching=False,
        expected_output_tokens=1.0,
    )
    for i in range(2):
        engine.add(f"g{i}", greedy_job(rows[i][:20], 40, ignore_eos=True))
    engine.step()
    engine.step()
    engine.add("e", embed_job(rows[2], pooling))

    num_preempted, ends = 0, {}
    while engine.num_live:
        output = engine.step()
        num_preempted += output.num_preempted
        ends |= {end.seq_id: end for end in output.finished}

    expected = plain_vector(oracle, rows[2], pooling)
    assert (torch.tensor(ends["e"].embedding) - expected).abs().max() < 1e-5
    if pooling is Pooling.MEAN:
        assert num_preempted > 0


def test_a_prompt_that_only_makes_a_vector_may_fill_the_window(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    rows = prompts([256, 257])
    engine = make_engine(loaded, num_blocks=128)

    ends = run(engine, [(str(i), embed_job(r, Pooling.LAST)) for i, r in enumerate(rows)])

    assert ends["0"].error is None
    assert ends["1"].error is not None and ends["1"].error.code == "context_length_exceeded"


def test_nan_in_the_states_ends_its_row_alone(model_pair: Any) -> None:
    loaded = as_engine_takes_it(make_oracle("llama"), packed=False)
    table: Any = loaded.model.get_input_embeddings()
    weight = table.weight.clone()
    weight[7] = math.nan
    table.weight = torch.nn.Parameter(weight, requires_grad=False)

    ends = run(
        make_engine(loaded),
        [("bad", embed_job([3, 7, 4], Pooling.MEAN)), ("good", embed_job([3, 4], Pooling.MEAN))],
    )

    assert ends["bad"].error is not None and ends["bad"].error.code == "model_output_invalid"
    assert ends["good"].error is None


def test_a_model_that_hides_its_states_is_said_to_make_no_vectors(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(loaded)
    engine._runner.__dict__["makes_vectors"] = False

    ends = run(engine, [("a", embed_job([3, 4], Pooling.LAST)), ("b", greedy_job([3, 4], 2))])

    assert ends["a"].error is not None and ends["a"].error.code == "unsupported_model"
    assert ends["b"].error is None
