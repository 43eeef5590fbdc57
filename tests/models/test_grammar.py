"""Rows with a grammar: what they may say, how they end, and that they stay rows of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ascii_tokenizer import ascii_tokenizer, with_text
from drive import make_engine, run
from grammar_jobs import PERSON, job, schema
from tiny import EOS, prompts
from tokenizers import Tokenizer

from gristmill.types import FinishReason, Grammar, GrammarKind, Job
from gristmill_worker.engine.base import Finished, Generated
from gristmill_worker.engine.grammar import Grammars, apply_masks

KINDS = GrammarKind
TOKENIZER: Tokenizer = ascii_tokenizer()


@pytest.fixture(scope="module")
def answer(model_pair: Any) -> Any:
    """The end of one row alone."""
    loaded = with_text(model_pair("llama")[1])

    def answer_of(one: Job) -> Finished:
        return run(make_engine(loaded), [("row", one)])["row"]

    return answer_of


@pytest.mark.parametrize(
    ("grammar", "fits"),
    [
        (PERSON, lambda text: set(json.loads(text)) == {"name", "age"}),
        (Grammar(KINDS.REGEX, "[0-9]{3}-[a-f]{2}"), lambda text: len(text) == 6 and text[3] == "-"),
        (Grammar(KINDS.CHOICE, '["yes","no","no way"]'), {"yes", "no", "no way"}.__contains__),
        (Grammar(KINDS.LARK, 'start: "(" start ")" | "x"'), lambda text: text.strip("()") == "x"),
    ],
    ids=["json_schema", "regex", "choice", "lark"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_an_answer_has_the_form_that_was_asked_for(
    answer: Any, grammar: Grammar, fits: Any, temperature: float
) -> None:
    end = answer(job(grammar, temperature=temperature))

    assert end.finish_reason is FinishReason.STOP and end.error is None
    assert fits(end.text)
    assert end.text == TOKENIZER.decode(list(end.generated.token_ids))
    assert end.usage.completion_tokens == len(end.generated.token_ids)


def test_B27_a_batch_with_one_schema_has_a_document_in_every_row(model_pair: Any) -> None:
    loaded = with_text(model_pair("llama")[1])
    rows = [
        (f"{i}/{choice}", job(PERSON, prompt, seed=10 * i + choice))
        for i, prompt in enumerate(prompts([3 + i for i in range(16)]))
        for choice in range(2)
    ]

    ends = run(make_engine(loaded, num_blocks=400, max_num_seqs=16), rows)

    assert {end.finish_reason for end in ends.values()} == {FinishReason.STOP}
    for end in ends.values():
        document = json.loads(end.text)
        assert end.text == json.dumps(document, separators=(",", ":")), "no blanks, nothing behind"
        assert 0 <= document["age"] <= 20_000_000_000


def test_B27_a_cut_document_says_length(answer: Any) -> None:
    whole = answer(job(PERSON))
    num_tokens = len(whole.generated.token_ids)

    cut = answer(job(PERSON, max_tokens=num_tokens - 1))
    exact = answer(job(PERSON, max_tokens=num_tokens))

    assert cut.finish_reason is FinishReason.LENGTH
    assert whole.text.startswith(cut.text) and cut.text != whole.text
    assert (exact.finish_reason, exact.text) == (FinishReason.STOP, whole.text)


DIFFERENT = [
    PERSON,
    *(
        schema({"type": "array", "items": {"type": "integer"}, "minItems": i, "maxItems": i})
        for i in range(1, 6)
    ),
    *(Grammar(KINDS.REGEX, f"[a-z]{{{i}}}[0-9]+") for i in range(1, 6)),
    *(Grammar(KINDS.CHOICE, json.dumps(["abc" * i, "abcd" * i])) for i in range(1, 5)),
    None,
]


def test_B27_sixteen_grammars_together_preempted_and_resumed_are_as_each_alone(
    model_pair: Any, compiled: Any
) -> None:
    loaded = with_text(model_pair("llama", packed=True)[1])
    rows = [
        job(grammar, prompt, seed=i, logprobs=2, frequency_penalty=0.3, max_tokens=20)
        for i, (grammar, prompt) in enumerate(
            zip(DIFFERENT, prompts([5 + i for i in range(16)]), strict=True)
        )
    ]
    alone = [
        run(make_engine(loaded, block_size=16, attention=compiled), [("0", row)])["0"]
        for row in rows
    ]
    # Little room, and no foresight: rows are thrown out and computed again.
    engine = make_engine(
        loaded, num_blocks=7, block_size=16, attention=compiled, expected_output_tokens=1.0
    )

    num_preempted = 0
    for i, row in enumerate(rows):
        whole = alone[i].generated
        at = i * 7 % (len(whole.token_ids) + 1)  # some rows begin where another Attempt ended
        engine.add(
            str(i),
            row,
            Generated(whole.token_ids[:at], whole.times_ms[:at], whole.logprobs[:at]),
        )
    together = {}
    while engine.num_live:
        output = engine.step()
        num_preempted += output.num_preempted
        together |= {end.seq_id: end for end in output.finished}

    assert num_preempted > 0
    for i, end in enumerate(alone):
        other = together[str(i)]
        assert (other.text, other.finish_reason) == (end.text, end.finish_reason)
        assert other.generated.token_ids == end.generated.token_ids
        assert other.generated.logprobs == end.generated.logprobs


def test_logprobs_are_of_the_model_not_of_the_grammar(answer: Any) -> None:
    yes_or_no = Grammar(KINDS.CHOICE, '["yes","no"]')

    free = answer(job(None, temperature=0.0, logprobs=3, max_tokens=1))
    bound = answer(job(yes_or_no, temperature=0.0, logprobs=3))

    assert bound.generated.logprobs[0].top == free.generated.logprobs[0].top
    assert bound.generated.logprobs[0].logprob < 0


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar(KINDS.LARK, "start: start"), "no answer can satisfy it"),
        (Grammar(KINDS.LARK, "start: nowhere"), "nowhere"),
        (Grammar(KINDS.JSON_SCHEMA, "[]"), "object"),
        (Grammar(KINDS.REGEX, "\u00e9"), "allows no token"),  # the vocabulary cannot spell it
    ],
)
def test_a_grammar_that_admits_nothing_ends_its_row_and_no_other(
    model_pair: Any, grammar: Grammar, reason: str
) -> None:
    loaded = with_text(model_pair("llama")[1])
    rows = [("bad", job(grammar)), ("good", job(PERSON)), ("free", job(None, max_tokens=4))]

    ends = run(make_engine(loaded), rows)

    error = ends["bad"].error
    assert error and error.code == "model_output_invalid" and error.status_code == 500
    assert reason in error.message
    assert ends["good"].error is None and ends["free"].error is None


def test_a_tokenizer_that_cannot_be_read_ends_rows_with_grammars_only(model_pair: Any) -> None:
    _, numbers = model_pair("llama")  # its tokens are no text

    ends = run(make_engine(numbers), [("bad", job(PERSON)), ("free", job(None, max_tokens=4))])

    assert ends["bad"].error and ends["free"].error is None


def test_NaN_ends_a_row_with_a_grammar_and_no_other(model_pair: Any) -> None:
    loaded = with_text(model_pair("llama")[1])
    engine = make_engine(loaded)
    broken = prompts([9], seed=3)[0]
    embeddings = loaded.model.get_input_embeddings().weight.data
    kept = embeddings[broken[-1]].clone()

    try:
        embeddings[broken[-1]] = float("nan")
        ends = run(engine, [("bad", job(PERSON, broken)), ("good", job(PERSON, [3, 4, 5]))])
    finally:
        embeddings[broken[-1]] = kept

    assert ends["bad"].error and "NaN" in ends["bad"].error.message
    assert ends["good"].error is None and json.loads(ends["good"].text)


LETTERS = Grammar(KINDS.REGEX, "a{2,6}")
A = TOKENIZER.token_to_id("a")


def bias(*token_ids: int) -> tuple[tuple[int, float], ...]:
    return tuple((token_id, 100.0) for token_id in sorted(token_ids))


@pytest.mark.parametrize(
    ("params", "text", "reason"),
    [
        # The end is wanted more than anything, and possible where the grammar is complete.
        ({"logit_bias": bias(EOS)}, "aa", FinishReason.STOP),
        ({"logit_bias": bias(EOS), "min_tokens": 4}, "aaaa", FinishReason.STOP),
        ({"logit_bias": bias(EOS), "ignore_eos": True}, "aaaaaa", FinishReason.STOP),
        # A complete answer to which nothing can be added ends its row, whatever min_tokens says.
        ({"logit_bias": bias(A), "min_tokens": 9}, "aaaaaa", FinishReason.STOP),
        ({"logit_bias": bias(A), "max_tokens": 3}, "aaa", FinishReason.LENGTH),
        # Stop tokens are end tokens: impossible before the grammar is complete.
        ({"logit_bias": bias(70), "stop_token_ids": (70,)}, "aa", FinishReason.STOP),
        # Stop strings act on the text, as always.
        ({"logit_bias": bias(A), "stop": ("aaa",)}, "", FinishReason.STOP),
    ],
)
def test_how_a_row_with_a_grammar_ends(
    answer: Any, params: dict[str, Any], text: str, reason: FinishReason
) -> None:
    end = answer(job(LETTERS, temperature=0.0, **params))

    assert (end.text, end.finish_reason, end.error) == (text, reason, None)


def test_masks_leave_rows_without_a_grammar_alone(model_pair: Any) -> None:
    loaded = with_text(model_pair("llama")[1])
    free = job(None, logprobs=1, temperature=0.0, max_tokens=12)

    alone = run(make_engine(loaded), [("free", free)])["free"]
    together = run(make_engine(loaded), [("a", job(PERSON)), ("free", free), ("b", job(LETTERS))])

    assert together["free"].generated.token_ids == alone.generated.token_ids


def test_special_tokens_have_a_text_when_asked_for(answer: Any) -> None:
    forced = job(None, logit_bias=bias(1), max_tokens=2, temperature=0.0)
    shown = replace(forced, params=replace(forced.params, skip_special_tokens=False))

    assert answer(forced).text == ""
    assert answer(shown).text == "<s><s>"
    assert answer(replace(shown, params=replace(shown.params, stop=("s><",)))).text == "<"


def test_masks_of_a_step_are_of_the_row_they_belong_to() -> None:
    logits = torch.zeros(3, 40)
    logits[2, 1] = float("nan")
    allow = [[0, 39], [7]]
    bits = np.zeros((2, 64), bool)
    for row, ids in zip(bits, allow, strict=True):
        row[ids] = True
    masks = np.packbits(bits, axis=1, bitorder="little")

    apply_masks(logits, [(0, masks[0]), (2, masks[1])])

    possible = [torch.nonzero(row == 0).flatten().tolist() for row in logits]
    assert possible == [allow[0], list(range(40)), allow[1]]
    assert logits[2, 1].isnan(), "what is broken stays broken"


def test_an_exception_in_a_library_costs_rows_with_grammars_a_step_and_nothing_else(
    model_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = with_text(model_pair("llama")[1])
    alone = run(make_engine(loaded), [("row", job(PERSON))])["row"]

    def fail(*_: object) -> None:
        raise RuntimeError("out of threads")

    executor = type("Executor", (), {"unsafe_compute_mask_ptr": fail})
    monkeypatch.setattr(Grammars, "_executor", executor())
    ends = run(make_engine(loaded), [("row", job(PERSON)), ("free", job(None, max_tokens=4))])

    assert ends["row"].text == alone.text and ends["free"].error is None
