"""What goes wrong with one row, whatever it is, ends that row with an error and no other."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from ascii_tokenizer import with_text
from drive import fail_a_step, make_engine, run
from tiny import VOCAB_SIZE, NumberDecoder, greedy_alone, greedy_job, prompts, score_job

from gristmill.types import Grammar, GrammarKind, Job, SamplingParams
from gristmill_worker.engine.base import Finished, Generated
from gristmill_worker.engine.grammar import GrammarState
from gristmill_worker.engine.sampler import SamplingRow, Unsampled, sample

GOOD = prompts([5, 9], seed=4)


def rows_beside(bad: Job) -> list[tuple[str, Job]]:
    """The bad row between two that are sampled in the same steps."""
    sampled = greedy_job(GOOD[1], 8, logprobs=2, ignore_eos=True)
    sampled = dataclasses.replace(
        sampled, params=dataclasses.replace(sampled.params, temperature=0.8, seed=3)
    )
    return [("first", greedy_job(GOOD[0], 8, ignore_eos=True)), ("bad", bad), ("last", sampled)]


def told(end: Finished) -> tuple[object, ...]:
    assert end.error is None
    return end.generated.token_ids, end.generated.logprobs, end.text, end.finish_reason


def code_beside_undisturbed_rows(loaded: Any, compiled: Any, bad: Job) -> str:
    """The code of the bad row's error. Those beside it get what they get alone, bit by bit."""
    rows, exact = rows_beside(bad), {"block_size": 16, "attention": compiled}
    alone = {
        name: run(make_engine(loaded, **exact), [(name, job)])[name] for name, job in rows[::2]
    }

    together = run(make_engine(loaded, **exact), rows)

    for name, end in alone.items():
        assert told(together[name]) == told(end)
    error = together["bad"].error
    assert error is not None and error.type == "server_error" and error.status_code == 500
    return error.code


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": ((VOCAB_SIZE + 7, 1.0),)},
        {"stop_token_ids": (VOCAB_SIZE + 7,), "min_tokens": 3},
    ],
    ids=["logit_bias", "stop_token_ids"],
)
def test_an_exception_in_the_sampler_ends_its_row(
    model_pair: Any, compiled: Any, params: dict[str, Any]
) -> None:
    # Ids that the model does not have: refused by ingest, so a Shard of another version has them.
    _, loaded = model_pair("llama", packed=True)

    bad = greedy_job(prompts([7])[0], 8, **params)

    assert code_beside_undisturbed_rows(loaded, compiled, bad) == "internal_error"
    assert run(make_engine(loaded), [("row", bad)])["row"].error


def test_an_exception_in_the_sampler_of_all_rows_is_no_rows_doing(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    engine = make_engine(loaded)
    for i, prompt in enumerate(GOOD):
        engine.add(str(i), greedy_job(prompt, 8, logit_bias=((VOCAB_SIZE + 7, 1.0),)))

    with pytest.raises(IndexError):
        engine.step()


class BrokenAt(NumberDecoder):
    """A tokenizer that cannot decode one token."""

    def __init__(self, token_id: int, error: Exception) -> None:
        self._token_id, self._error = token_id, error

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        if self._token_id in ids:
            raise self._error
        return super().decode(ids, skip_special_tokens)


@pytest.mark.parametrize("params", [{}, {"stop": ("nothing",)}], ids=["at the end", "on the way"])
def test_an_exception_in_the_tokenizer_ends_its_row(
    model_pair: Any, compiled: Any, params: dict[str, Any]
) -> None:
    _, loaded = model_pair("llama", packed=True)
    loaded = dataclasses.replace(loaded, tokenizer=BrokenAt(70, ValueError("no such token")))
    forced = greedy_job(prompts([7])[0], 4, logit_bias=((70, 100.0),), **params)

    assert code_beside_undisturbed_rows(loaded, compiled, forced) == "internal_error"


def test_an_exception_on_resume_ends_its_row(model_pair: Any) -> None:
    _, loaded = model_pair("llama")
    loaded = dataclasses.replace(loaded, tokenizer=BrokenAt(70, ValueError("no such token")))
    engine = make_engine(loaded)
    engine.add("bad", greedy_job(GOOD[0], 8, stop=("nothing",)), Generated((5, 70), (1, 2)))

    ends = run(engine, [("good", greedy_job(GOOD[1], 8))])

    assert ends["bad"].error and ends["good"].error is None


def test_no_memory_is_no_rows_doing(model_pair: Any) -> None:
    """The Worker takes rows out and tries again, so it must hear of it."""
    _, loaded = model_pair("llama")
    loaded = dataclasses.replace(loaded, tokenizer=BrokenAt(70, MemoryError()))
    engine = make_engine(loaded)
    engine.add("row", greedy_job(GOOD[0], 4, logit_bias=((70, 100.0),), stop=("nothing",)))

    with pytest.raises(MemoryError):
        engine.step()


def test_a_row_that_ends_at_once_outlives_a_step_that_fails(model_pair: Any) -> None:
    """It is told with the next step, or may be cancelled like the others."""
    _, loaded = model_pair("llama")
    engine = make_engine(loaded)
    for name in ("refused", "given up"):
        engine.add(name, greedy_job([3, VOCAB_SIZE], 4))
    engine.add("good", greedy_job(GOOD[0], 4))
    fail_a_step(engine)
    engine.cancel("given up")
    ends = run(engine, [])

    assert ends.keys() == {"refused", "good"} and ends["refused"].error


def test_an_exception_in_a_grammar_ends_its_row(
    model_pair: Any, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = with_text(model_pair("llama", packed=True)[1])
    letters = Grammar(GrammarKind.REGEX, "a{2,6}")
    take = GrammarState.take

    def fails_later(state: GrammarState, token_ids: Any) -> bool:
        if len(token_ids) > 9:
            raise RuntimeError("the library is confused")
        return take(state, token_ids)

    monkeypatch.setattr(GrammarState, "take", fails_later)
    bad = greedy_job(prompts([7])[0], 8, grammar=letters, min_tokens=6)

    assert code_beside_undisturbed_rows(loaded, compiled, bad) == "internal_error"


@pytest.mark.parametrize("token_id", [VOCAB_SIZE, -1])
def test_a_prompt_with_an_unknown_token_is_refused(model_pair: Any, token_id: int) -> None:
    oracle, loaded = model_pair("llama")

    ends = run(
        make_engine(loaded),
        [("bad", greedy_job([3, token_id, 5], 4)), ("good", greedy_job(GOOD[0], 8))],
    )

    error = ends["bad"].error
    assert error is not None and (error.status_code, error.param) == (400, "prompt")
    assert list(ends["good"].generated.token_ids) == greedy_alone(oracle, GOOD[0], 8)


BAD_PROMPT = [3, 150, 7]
AB = Grammar(GrammarKind.CHOICE, '["ab","cd"]')


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    "bad",
    [
        greedy_job(BAD_PROMPT, 4),
        greedy_job(BAD_PROMPT, 4, logprobs=3),
        greedy_job(BAD_PROMPT, 4, grammar=AB),
        greedy_job(BAD_PROMPT, 4, repetition_penalty=1.2, logit_bias=((5, 1.0),)),
        score_job(BAD_PROMPT, top=2),
    ],
    ids=["greedy", "logprobs", "grammar", "parameters", "score"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_B63_logits_that_are_no_numbers_end_their_row(
    model_pair: Any, compiled: Any, value: float, bad: Job, temperature: float
) -> None:
    loaded = with_text(model_pair("llama", packed=True)[1])
    bad = dataclasses.replace(bad, params=dataclasses.replace(bad.params, temperature=temperature))
    embeddings = loaded.model.get_input_embeddings().weight.data
    kept = embeddings[150].clone()

    try:
        embeddings[150] = value
        code = code_beside_undisturbed_rows(loaded, compiled, bad)
    finally:
        embeddings[150] = kept

    assert code == "model_output_invalid"


def test_infinite_logits_are_not_finite() -> None:
    logits = torch.zeros(3, 50)
    logits[1, 7] = float("inf")
    rows = [SamplingRow(SamplingParams(4, temperature=t, seed=1), 0) for t in (0.0, 1.0, 1.0)]
    [zero, _, drawn] = sample(logits[[0, 2, 2]].clone(), rows)

    assert sample(logits.clone(), rows) == [zero, Unsampled.NOT_FINITE, drawn]
    greedy = [rows[0]] * 3
    assert sample(logits, greedy)[1] is Unsampled.NOT_FINITE
