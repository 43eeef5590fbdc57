"""What each task asks for a row, and what it makes of an answer."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gristmill.data.prompts import Prompt
from gristmill.data.template import Template
from gristmill.errors import DataInvalid, UsageError
from gristmill.scores.choices import Choices, Rule
from gristmill.scores.judge import Judge, answer_logprobs, parse_answers
from gristmill.scores.loglikelihood import Loglikelihood, Perplexity
from gristmill.scores.reasoned import read_reasoned
from gristmill.scores.task import AnswerUnusable, Gold

PLAIN = Prompt(Template("Q: {q}\nA: "), chat=False)
CHAT = Prompt(Template("Rate {q}"), Template("Be strict."))


def entry(total: float | None, ids: list[int], logprobs: list[float] | None = None) -> Any:
    return {
        "sum_logprob": total,
        "logprob_per_token": None if total is None else total / len(ids),
        "logprob_per_byte": None if total is None else total / 7,
        "token_ids": ids,
        "token_logprobs": logprobs or [total],
    }


def answer(*totals: float | None, best: int = 0) -> dict[str, Any]:
    rules = ("sum_logprob", "logprob_per_token", "logprob_per_byte")
    entries = [entry(total, [i]) for i, total in enumerate(totals)]
    return {"choices": entries, "best": dict.fromkeys(rules, best)}


def test_a_target_is_asked_for_behind_its_prompt() -> None:
    task = Loglikelihood(PLAIN, Template("{a}"), truncate=True)

    assert task.body({"q": "one", "a": "two"}, 1) == {
        "type": "loglikelihood",
        "context": "Q: one\nA: ",
        "continuation": "two",
        "truncate_prompt_tokens": -1,
    }
    found = task.read({"is_greedy": True, "num_tokens": 1, **entry(-2.0, [4])}, {}, 1)
    assert found.columns == {
        "logprob": -2.0,
        "logprob_per_token": -2.0,
        "logprob_per_byte": pytest.approx(-2 / 7),
        "is_greedy": True,
        "num_tokens": 1,
    }
    assert list(found.columns) == list(task.columns())


def test_a_text_is_rolled_in_the_windows_that_are_asked_for() -> None:
    assert Perplexity(Template("{q}"), 64, 32).body({"q": "x"}, 1) == {
        "type": "rolling",
        "text": "x",
        "window": 64,
        "stride": 32,
    }
    with pytest.raises(UsageError, match=r"text 'q' names no column.*\{q\}"):
        Perplexity(Template("q"))


def test_fixed_choices_have_probabilities_a_margin_and_a_verdict() -> None:
    choices = (Template("yes"), Template("no"))
    task = Choices(PLAIN, choices, gold=Gold("g"))
    row = {"q": "one", "g": "no"}

    assert task.body(row, 1)["choices"] == ["yes", "no"] and task.labels == ("yes", "no")
    found = task.read(answer(math.log(0.3), math.log(0.1)), row, 1)

    assert found.columns["probabilities"] == pytest.approx([0.75, 0.25])
    assert found.columns["margin"] == pytest.approx(0.5)
    assert found.columns["prediction"] == "yes" and found.columns["is_correct"] is False
    assert found.beside["log_loss"] == pytest.approx(-math.log(0.25))
    assert list(found.columns) == list(task.columns())
    ungraded = Choices(PLAIN, choices)
    assert list(ungraded.read(answer(-1.0, -2.0), row, 1).columns) == list(ungraded.columns())


def test_choices_come_from_columns_or_a_list_and_gold_from_text_or_place() -> None:
    columns = Choices(PLAIN, (Template("{a}"), Template(" {b}")), gold=Gold("g"))
    listed = Choices(PLAIN, column="all", gold=Gold("g"), rule=Rule.TOKEN)
    row = {"q": "x", "a": "red", "b": "blue", "all": ["red", "blue"], "g": 1}

    assert columns.labels is None and listed.labels is None
    assert columns.body(row, 1)["choices"] == ["red", " blue"]
    assert listed.body(row, 1)["choices"] == ["red", "blue"]
    for gold in (1, "1", "blue", " blue "):
        found = columns.read(answer(-1.0, None, best=0), {**row, "g": gold}, 1)
        assert found.beside["gold_idx"] == 1
    assert found.columns["probabilities"] == [1.0, 0.0] and found.beside["log_loss"] is None


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"q": "x", "g": "maybe"}, "Row 4: the column 'g' has 'maybe'.*'yes', 'no'"),
        ({"q": "x", "g": 2}, "'2', which is no answer and no place of one, from 0 to 1"),
        ({"q": "x", "g": None}, "Row 4"),
        ({"q": "x"}, "Row 4: the right answer .* 'g', which is not there. The columns are 'q'"),
        ({"g": "yes"}, "Row 4: .*'q'"),
    ],
)
def test_a_row_without_a_usable_answer_is_refused_before_anything_runs(
    row: dict[str, Any], what: str
) -> None:
    task = Choices(PLAIN, (Template("yes"), Template("no")), gold=Gold("g"))

    with pytest.raises(DataInvalid, match=what):
        task.body(row, 4)


def test_bad_choices_are_refused() -> None:
    with pytest.raises(UsageError, match="must differ"):
        Choices(PLAIN, (Template("yes"), Template(" yes")))
    with pytest.raises(UsageError, match="not enough"):
        Choices(PLAIN, (Template("yes"),))
    with pytest.raises(UsageError, match="Name the choices once"):
        Choices(PLAIN)
    with pytest.raises(DataInvalid, match=r"Row 2: .*'all' is to hold a list.*CSV"):
        Choices(PLAIN, column="all").body({"q": "x", "all": "red|blue"}, 2)
    with pytest.raises(AnswerUnusable):
        Choices(PLAIN, column="all").read(answer(None, None), {"all": ["a", "b"]}, 1)


def test_a_judge_asks_in_a_chat_and_has_an_expected_value() -> None:
    task = Judge(CHAT, parse_answers("1-3"), Gold("g"))
    row = {"q": "this", "g": "3"}

    assert task.body(row, 1) == {
        "type": "choices",
        "messages": [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": "Rate this"},
        ],
        "choices": ["1", "2", "3"],
    }
    logs = [math.log(p) for p in (0.1, 0.2, 0.1)]
    found = task.read(answer(*logs), row, 1)

    assert found.columns["prediction"] == "2" and found.columns["is_correct"] is False
    assert found.columns["expected"] == pytest.approx(0.25 * 1 + 0.5 * 2 + 0.25 * 3)
    assert found.columns["allowed_mass"] == pytest.approx(0.4)
    assert found.beside["distance"] == pytest.approx(1.0)
    assert list(found.columns) == list(task.columns())


def test_an_answer_that_another_one_goes_on_from_counts_only_where_it_ends() -> None:
    one = entry(math.log(0.5), [7], [math.log(0.5)])
    ten = entry(math.log(0.3), [7, 8], [math.log(0.5), math.log(0.6)])
    two = entry(math.log(0.2), [9], [math.log(0.2)])

    found = [math.exp(value or 0) for value in answer_logprobs([one, ten, two])]

    assert found == pytest.approx([0.2, 0.3, 0.2])


def test_the_worst_rows_count_in_the_log_loss_however_bad_they_are() -> None:
    choices = Choices(PLAIN, (Template("yes"), Template("no")), gold=Gold("g"))
    judge = Judge(CHAT, ("yes", "no"), Gold("g"))

    for task in (choices, judge):
        found = task.read(answer(-1.0, -1001.0), {"g": "no"}, 1)
        assert found.columns["probabilities"] == [1.0, 0.0]
        assert found.beside["log_loss"] == pytest.approx(1000.0)

    found = judge.read(answer(-2000.0, -2000.0), {"g": "no"}, 1)
    assert found.beside["log_loss"] == pytest.approx(math.log(2))
    assert (found.columns["prediction"], found.columns["allowed_mass"]) == ("yes", 0.0)


@pytest.mark.parametrize("text", ["1-1", "5-1", "1-900", "good", "good,good", "good,,bad", ""])
def test_answers_that_leave_no_choice_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_answers(text)


def test_a_gold_value_outside_the_range_is_refused() -> None:
    for gold in (7, "0"):
        with pytest.raises(DataInvalid, match=f"Row 3: the column 'g' has '{gold}'"):
            Judge(CHAT, parse_answers("1-5"), Gold("g")).body({"q": "x", "g": gold}, 3)


def reasoned(content: str, tokens: list[tuple[str, dict[str, float]]], end: str = "stop") -> Any:
    """An answer of a chat whose tokens have these alternatives; the first one was taken."""
    entries = [
        {
            "bytes": list(text.encode()),
            "logprob": math.log(next(iter(tops.values()), 1.0)),
            "top_logprobs": [
                {"bytes": list(other.encode()), "logprob": math.log(p)} for other, p in tops.items()
            ],
        }
        for text, tops in tokens
    ]
    choice = {"message": {"content": content}, "finish_reason": end}
    return {"choices": [{**choice, "logprobs": {"content": entries}}]}


def test_a_reasoned_answer_is_parsed_and_its_probabilities_are_read_where_answers_part() -> None:
    content = '{"reason":"says \\"answer\\"","answer":"10"}'
    head = '{"reason":"says \\"answer\\"","answer":'
    body = reasoned(
        content,
        [
            (head, {}),
            ('"1', {'"1': 0.6, '"2': 0.3, "x": 0.1}),
            ("0", {"0": 0.75, '"': 0.25}),
            ('"}', {}),
        ],
    )

    found = read_reasoned(body, ("1", "2", "10"))

    assert (found.answer_idx, found.reason) == (2, 'says "answer"')
    assert found.masses == pytest.approx((0.15, 0.3, 0.45))


@pytest.mark.parametrize(
    ("content", "end", "code"),
    [
        ('{"reason":"it is', "length", "answer_unreadable"),
        ('{"reason":"x"}', "stop", "answer_unreadable"),
        ('{"reason":"x","answer":"9"}', "stop", "answer_not_allowed"),
        ('{"reason":"x","answer":2}', "stop", "answer_not_allowed"),
    ],
)
def test_a_reasoned_answer_that_is_cut_or_not_allowed_is_no_score(
    content: str, end: str, code: str
) -> None:
    with pytest.raises(AnswerUnusable) as caught:
        read_reasoned(reasoned(content, [], end), ("1", "2"))

    assert caught.value.code == code


def test_a_reason_is_asked_for_in_json_of_a_fixed_form() -> None:
    task = Judge(CHAT, ("good", "bad"), reason_chars=80)

    body = task.body({"q": "x"}, 1)

    assert task.url == "/v1/chat/completions" and body["temperature"] == 0
    assert body["guided_json"]["properties"]["answer"] == {"enum": ["good", "bad"]}
    spelled = json.dumps({"reason": "\u9eba" * 80, "answer": "good"})  # one token for each byte
    assert len(spelled.encode()) <= body["max_tokens"]
    assert "expected" not in task.columns() and "reason" in task.columns()
    with pytest.raises(UsageError, match="in a chat"):
        Judge(PLAIN, ("good", "bad"), reason_chars=80)
