"""Answers to rows of /v1/score: sums, normalised scores, the best choice, perplexities."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pipeline import PIN, read_lines

from gristmill.control.lines import LineWriter
from gristmill.control.receipt import Origin
from gristmill.scoring import ScoreType, Scoring, TextSize
from gristmill.types import (
    Choice,
    Endpoint,
    FinishReason,
    Job,
    JobKind,
    Prompt,
    Row,
    RowResult,
    SamplingParams,
    TokenLogprob,
    Usage,
)

ROW = Row(0, "row")
BYTES = {i: f" t{i}".encode() for i in range(10)} | {9: b"\xf0\x9f"}


def scored(*values: float, top: float | None = None) -> Choice:
    """The likeliest token has the value `top`, or is the scored one."""
    reports = tuple(TokenLogprob(v, ((8, v if top is None else top),)) for v in values)
    return Choice((), "", FinishReason.LENGTH, token_bytes=BYTES, scored=reports)


def body_of(
    kind: ScoreType,
    prompts: list[Prompt],
    choices: list[Choice],
    sizes: list[TextSize],
    top: int = 0,
) -> Any:
    scoring = Scoring(kind, tuple(sizes), top)
    params = SamplingParams(0, temperature=0.0, logprobs=1)
    job = Job((ROW,), tuple(prompts), params, JobKind.SCORE, scoring=scoring)
    result = RowResult(0, (ROW,), Usage(9), tuple(choices), finished_at=5)
    line = LineWriter("batch_1", Endpoint.SCORE, PIN).answer(ROW, result, job, Origin("att-1"))
    [found] = read_lines(line)  # raises for what is no JSON
    return found["response"]["body"]


def test_a_continuation_has_its_sum_and_what_it_is_of() -> None:
    prompt = Prompt((1, 2, 3, 9), 2)

    body = body_of(
        ScoreType.LOGLIKELIHOOD, [prompt], [scored(-1.5, -0.25)], [TextSize(7, 2)], top=1
    )

    assert body["object"] == "score" and body["type"] == "loglikelihood"
    assert body["id"].startswith("score-") and body["model"] == PIN.name
    assert body["sum_logprob"] == -1.75 and body["logprob_per_token"] == -0.875
    assert body["logprob_per_byte"] == -0.25
    assert (body["num_tokens"], body["num_bytes"], body["is_greedy"]) == (2, 7, True)
    assert body["tokens"] == [" t3", "bytes:\\xf0\\x9f"] and body["token_ids"] == [3, 9]
    assert body["token_logprobs"] == [-1.5, -0.25]
    assert body["top_logprobs"][0] == [{"token": " t8", "token_id": 8, "logprob": -1.5}]
    assert body["usage"]["prompt_tokens"] == 9 and body["usage"]["completion_tokens"] == 0
    assert body["gristmill"]["params"] == {"type": "loglikelihood", "top_logprobs": 1}
    assert body["gristmill"]["dropped_tokens"] == []


def test_each_rule_has_its_best_choice() -> None:
    prompts = [Prompt((1, 2), 1), Prompt((1, 2, 3), 1), Prompt((1, 2, 3), 1)]
    choices = [scored(-2.0), scored(-1.5, -1.5, top=-0.1), scored(-1.5, -1.6)]
    sizes = [TextSize(2, 1), TextSize(6, 2), TextSize(9, 2)]

    body = body_of(ScoreType.CHOICES, prompts, choices, sizes)

    assert body["best"] == {"sum_logprob": 0, "logprob_per_token": 1, "logprob_per_byte": 2}
    assert [entry["index"] for entry in body["choices"]] == [0, 1, 2]
    assert [entry["is_greedy"] for entry in body["choices"]] == [True, False, True]
    assert "top_logprobs" not in body["choices"][0]


def test_B63_what_is_impossible_is_null_and_never_the_best() -> None:
    prompts = [Prompt((1, 2), 1), Prompt((1, 3), 1)]
    impossible = scored(-math.inf, top=-0.1)

    body = body_of(
        ScoreType.CHOICES, prompts, [impossible, scored(-9.0)], [TextSize(1, 1), TextSize(1, 1)]
    )

    first = body["choices"][0]
    assert first["sum_logprob"] is first["logprob_per_token"] is first["logprob_per_byte"] is None
    assert first["token_logprobs"] == [None] and first["is_greedy"] is False
    assert set(body["best"].values()) == {1}


def test_a_rolled_text_has_the_perplexities_of_all_its_windows() -> None:
    prompts = [Prompt((1, 2, 3), 1), Prompt((2, 3, 4), 2)]

    body = body_of(
        ScoreType.ROLLING, prompts, [scored(-1.0, -2.0), scored(-3.0)], [TextSize(12, 3)]
    )

    assert body["sum_logprob"] == -6.0
    assert body["token_perplexity"] == pytest.approx(math.exp(2))
    assert body["word_perplexity"] == pytest.approx(math.exp(2))
    assert body["byte_perplexity"] == pytest.approx(math.exp(0.5))
    assert body["bits_per_byte"] == pytest.approx(0.5 / math.log(2))
    assert (body["num_tokens"], body["num_windows"]) == (3, 2)
    assert body["token_ids"] == [2, 3, 4] and body["token_logprobs"] == [-1.0, -2.0, -3.0]


def test_a_perplexity_too_large_for_a_number_is_null() -> None:
    body = body_of(ScoreType.ROLLING, [Prompt((1, 2), 1)], [scored(-3000.0)], [TextSize(1, 1)])

    assert body["byte_perplexity"] is None and body["sum_logprob"] == -3000.0


def test_B66_echoed_tokens_come_first_and_the_first_of_all_has_null() -> None:
    params = SamplingParams(1, logprobs=1, echo=True)
    job = Job((ROW,), (Prompt((1, 2), 1),), params)
    reports = tuple(TokenLogprob(v, ((8, -0.5),)) for v in (-1.0, -2.0))
    choice = Choice(
        *((3,), " t1 t2 t3", FinishReason.LENGTH, reports[1:], (0, 3, 6), BYTES, reports[:1])
    )
    result = RowResult(0, (ROW,), Usage(2, 1), (choice,), finished_at=5)

    line = LineWriter("batch_1", Endpoint.COMPLETIONS, PIN).answer(
        ROW, result, job, Origin("att-1")
    )

    [entry] = json.loads(line)["response"]["body"]["choices"]
    assert entry["logprobs"] == {
        "tokens": [" t1", " t2", " t3"],
        "token_logprobs": [None, -1.0, -2.0],
        "top_logprobs": [None, {" t8": -0.5, " t2": -1.0}, {" t8": -0.5, " t3": -2.0}],
        "text_offset": [0, 3, 6],
    }
