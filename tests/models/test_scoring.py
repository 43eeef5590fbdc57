"""Log-probabilities of prompts: the model's own, with the same bits however they are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drive import make_engine, run
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCAB_SIZE, greedy_job, prompts, score_job

from gristmill.types import FinishReason, Job, Prompt, Row, SamplingParams, TokenLogprob
from gristmill_worker.engine.base import Generated
from gristmill_worker.engine.engine import ContinuousBatchingEngine


def distributions(model: Any, token_ids: list[int]) -> torch.Tensor:  # [T, vocab_size] float64
    """What follows each token, in one plain pass."""
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits.double().log_softmax(-1)


def agree(model: Any, token_ids: list[int], scored_from: int, found: Any) -> bool:
    """Whether each value, and the likeliest one, are the model's own to 1e-4."""
    expected = distributions(model, token_ids)
    pairs = []
    for position, one in enumerate(found, scored_from):
        before = expected[position - 1]
        pairs.append((one.logprob, float(before[token_ids[position]])))
        pairs += [(value, float(before[token_id])) for token_id, value in one.top]
        if one.top:
            pairs.append((one.top[0][1], float(before.max())))
    return len(found) == len(token_ids) - scored_from and all(
        ours == pytest.approx(theirs, abs=1e-4) for ours, theirs in pairs
    )


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_oss"])
def test_B60_each_value_is_of_the_token_that_follows(model_pair: Any, name: str) -> None:
    oracle, loaded = model_pair(name)
    [text] = prompts([10])

    end = run(make_engine(loaded), [("row", score_job(text, top=3))])["row"]

    assert agree(oracle, text, 1, end.scored)
    assert end.finish_reason is FinishReason.LENGTH and not end.generated.token_ids
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (10, 0)
    assert set(end.token_bytes) >= set(text[1:])


def test_B60_generated_tokens_have_the_values_that_scoring_gives_them(model_pair: Any) -> None:
    _, loaded = model_pair("llama", packed=True)
    [prompt] = prompts([9])
    answer = run(
        make_engine(loaded), [("row", greedy_job(prompt, 8, ignore_eos=True, logprobs=2))]
    )["row"].generated

    whole = [*prompt, *answer.token_ids]
    end = run(make_engine(loaded), [("row", score_job(whole, len(prompt), top=2))])["row"]

    for scored, generated in zip(end.scored, answer.logprobs, strict=True):
        assert scored.logprob == pytest.approx(generated.logprob, abs=1e-5)
        assert [i for i, _ in scored.top] == [i for i, _ in generated.top]


def test_a_prompt_is_scored_and_answered_at_once(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    [text] = prompts([37])
    plain = run(make_engine(loaded), [("row", greedy_job(text, 5, logprobs=0))])["row"]
    params = SamplingParams(5, temperature=0.0, logprobs=0)
    job = Job((Row(0, "row"),), (Prompt(tuple(text), 30),), params)

    end = run(make_engine(loaded), [("row", job)])["row"]

    assert agree(oracle, text, 30, end.scored)
    assert end.generated.token_ids == plain.generated.token_ids
    assert [len(one.top) for one in end.scored] == [0] * 7


@pytest.mark.parametrize("at", [1, 4, 5])
def test_a_resumed_row_scores_its_prompt_again_and_decodes_nothing_twice(
    model_pair: Any, at: int
) -> None:
    _, loaded = model_pair("llama", packed=True)
    [text] = prompts([37])
    params = SamplingParams(5, temperature=0.0, logprobs=0, ignore_eos=True)
    job = Job((Row(0, "row"),), (Prompt(tuple(text), 3),), params)
    whole = run(make_engine(loaded), [("row", job)])["row"]
    generated = whole.generated
    engine = make_engine(loaded)

    begun = Generated(generated.token_ids[:at], generated.times_ms[:at], generated.logprobs[:at])
    engine.add("row", job, begun)
    num_decoded = 0
    while engine.num_live:
        output = engine.step()
        num_decoded += output.num_decode_tokens
        finished = output.finished

    assert [one.logprob for one in finished[0].scored] == pytest.approx(
        [one.logprob for one in whole.scored], abs=1e-5
    )
    assert finished[0].generated.token_ids == generated.token_ids
    assert num_decoded == 5 - at
    assert engine.block_manager.num_free_blocks == engine.num_blocks


def test_nothing_to_score_is_answered_without_a_step(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(loaded)
    engine.add("one", score_job([7]))
    engine.add("end", score_job([7, 8, 9], 3))

    output = engine.step()

    assert [end.scored for end in output.finished] == [(), ()]
    assert output.num_prefill_tokens == 0 and not engine.num_live


def test_a_prompt_of_one_token_more_than_the_window_can_be_scored(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    longest, longer = prompts([65, 66])
    engine = make_engine(loaded, num_blocks=16, block_size=4)
    assert engine.max_model_len == 64

    ends = run(engine, [("a", score_job(longest, 60)), ("b", score_job(longer, 60))])

    assert agree(oracle, longest[:64], 60, ends["a"].scored[:-1])
    assert len(ends["a"].scored) == 5
    assert ends["b"].error is not None and ends["b"].error.code == "context_length_exceeded"


def test_continuations_share_their_context_and_compute_little_more(model_pair: Any) -> None:
    oracle, loaded = model_pair("llama")
    context, *tails = prompts([150, 3, 5, 4, 6])
    rows = [[*context, *tail] for tail in tails]
    engine = make_engine(loaded, block_size=16, max_num_batched_tokens=64)
    for i, row in enumerate(rows):
        engine.add(str(i), score_job(row, len(context)))

    ends, num_computed = {}, 0
    while engine.num_live:
        output = engine.step()
        num_computed += output.num_prefill_tokens
        ends.update({end.seq_id: end for end in output.finished})

    for i, row in enumerate(rows):
        assert agree(oracle, row, len(context), ends[str(i)].scored)
    # The last token of the context is what the first of each continuation is read from, and nobody
    # asks what follows the last one of all.
    assert num_computed == len(context) - 1 + sum(map(len, tails))
    assert sorted(end.usage.cached_tokens for end in ends.values()) == [0, 149, 149, 149]


def test_B63_a_NaN_in_the_logits_is_the_error_of_that_row_alone(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    good, bad = prompts([12, 12])
    alone = run(make_engine(loaded), [("good", score_job(good))])["good"]
    bad[5] = 198
    weight = loaded.model.get_input_embeddings().weight
    assert 198 not in good
    kept = weight[198].clone()
    weight[198] = float("nan")

    try:
        ends = run(make_engine(loaded), [("good", score_job(good)), ("bad", score_job(bad))])
    finally:
        weight[198] = kept

    assert ends["bad"].error is not None and ends["bad"].error.code == "model_output_invalid"
    assert [one.logprob for one in ends["good"].scored] == pytest.approx(
        [one.logprob for one in alone.scored], abs=1e-5
    )


def test_B67_logits_are_held_in_slices_and_give_the_same_values(
    model_pair: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle, loaded = model_pair("llama", packed=True)
    rows = prompts([200] * 4)
    jobs = [(str(i), score_job(row)) for i, row in enumerate(rows)]
    whole = run(make_engine(loaded, block_size=16, attention=compiled), jobs)
    sizes: list[int] = []

    def watch(module: Any, args: Any, output: torch.Tensor) -> None:
        sizes.append(output.shape[-2])

    monkeypatch.setattr("gristmill_worker.engine.model_runner._SCORED_AT_ONCE", 16)
    engine = make_engine(loaded, block_size=16, attention=compiled, max_num_batched_tokens=512)
    hook = loaded.model.get_output_embeddings().register_forward_hook(watch)
    sliced = run(engine, jobs)
    hook.remove()

    assert max(sizes) == 16 and sum(sizes) == 4 * 199
    for i, row in enumerate(rows):
        assert agree(oracle, row, 1, sliced[str(i)].scored)
        assert bits(sliced[str(i)].scored) == bits(whole[str(i)].scored)


def test_a_head_that_cannot_be_run_alone_gives_the_same_values(model_pair: Any) -> None:
    _, loaded = model_pair("llama", packed=True)
    [text] = prompts([150])
    expected = run(make_engine(loaded), [("row", score_job(text))])["row"]
    engine = make_engine(loaded, num_blocks=64, max_num_batched_tokens=140)
    engine._runner._head._backbone = None

    found = run(engine, [("row", score_job(text))])["row"]

    assert bits(found.scored) == bits(expected.scored)


def bits(scored: Any) -> list[tuple[str, Any]]:
    return [(one.logprob.hex(), one.top) for one in scored]


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_values_have_the_same_bits_in_any_chunks_company_and_with_any_cache(
    model_pair: Any, compiled: Any, data: st.DataObject
) -> None:
    _, loaded = model_pair("llama", packed=True)
    draw = data.draw
    [context] = prompts([draw(st.integers(1, 70))], seed=draw(st.integers(0, 3)))
    tails = [
        draw(st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=1, max_size=20))
        for _ in range(draw(st.integers(1, 4)))
    ]
    jobs = {
        str(i): score_job([*context, *tail], draw(st.integers(1, len(context))))
        for i, tail in enumerate(tails)
    }
    jobs["mate"] = greedy_job(context, 12, ignore_eos=True)

    def engine(**limits: Any) -> ContinuousBatchingEngine:
        return make_engine(loaded, block_size=16, attention=compiled, **limits)

    alone = {
        name: run(engine(max_num_batched_tokens=256), [(name, job)])[name]
        for name, job in jobs.items()
    }
    # Little room and no foresight: rows are thrown out and computed again.
    crowded = engine(
        num_blocks=draw(st.integers(7, 16)),
        max_num_batched_tokens=draw(st.integers(8, 100)),
        prefix_caching=draw(st.booleans()),
        expected_output_tokens=1.0,
    )
    together = run(crowded, [(name, jobs[name]) for name in draw(st.permutations(sorted(jobs)))])

    for name, end in alone.items():
        assert bits(together[name].scored) == bits(end.scored)
        assert together[name].generated.token_ids == end.generated.token_ids


def test_an_impossible_token_has_minus_infinity_and_nothing_else_suffers() -> None:
    from gristmill_worker.engine.logprobs import report

    logits = torch.tensor([[0.0, float("-inf"), 0.0]])

    found = report(logits, [1], [3])

    assert found == [TokenLogprob(float("-inf"), found[0].top)]
    assert sorted(i for i, _ in found[0].top) == [0, 2]
