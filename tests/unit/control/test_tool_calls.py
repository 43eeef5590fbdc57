"""Lines of answers with calls of tools, as the API has them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from pipeline import PIN

from gristmill.control.lines import LineWriter
from gristmill.control.receipt import Origin
from gristmill.types import (
    Choice,
    Endpoint,
    FinishReason,
    Grammar,
    GrammarKind,
    Job,
    Prompt,
    Row,
    RowResult,
    SamplingParams,
    ToolFormat,
    ToolUse,
)

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e9\u2028"}}\n</tool_call>'
ORIGIN = Origin("att-1", 1, "gristmill 1, torch 2", "the-template")
USE = ToolUse(ToolFormat.HERMES, ("f",))


def body_of(
    *texts: str, reason: FinishReason = FinishReason.STOP, use: ToolUse | None = USE, row: int = 7
) -> dict[str, Any]:
    choices = tuple(Choice((1,), text, reason) for text in texts)
    result = RowResult(0, (Row(row, "seven"),), choices=choices)
    params = SamplingParams(max_tokens=3, tools=use)
    job = Job(result.rows, (Prompt((1,)),), params)
    line = LineWriter("batch_1", Endpoint.CHAT, PIN).answer(job.rows[0], result, job, ORIGIN)
    assert line.count(b"\n") == 1
    body: dict[str, Any] = json.loads(line)["response"]["body"]
    return body


def test_calls_leave_the_text_and_name_the_reason() -> None:
    body = body_of(CALL + "\n" + CALL)
    assert ChatCompletion.model_validate(body).choices[0].message.tool_calls
    (choice,) = body["choices"]

    calls = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert choice["finish_reason"] == "tool_calls"
    assert [call["type"] for call in calls] == ["function"] * 2
    assert [call["function"]["name"] for call in calls] == ["f"] * 2
    assert json.loads(calls[0]["function"]["arguments"]) == {"a": "\u00e9\u2028"}


def test_ids_of_calls_are_derived_and_differ() -> None:
    def ids(**others: Any) -> list[str]:
        choices = body_of(CALL + CALL, CALL, **others)["choices"]
        return [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]

    assert len(set(ids())) == 3 and ids() == ids()
    assert not set(ids()) & set(ids(row=8))
    assert all(call_id.startswith("call_") for call_id in ids())


def test_ids_for_mistral_are_what_its_template_takes() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}]'

    (choice,) = body_of(text, use=ToolUse(ToolFormat.MISTRAL, ("f",)))["choices"]

    (call,) = choice["message"]["tool_calls"]
    assert len(call["id"]) == 9 and call["id"].isalnum()


@pytest.mark.parametrize(
    ("text", "content"), [(f"I look.\n{CALL}", "I look."), (f"{CALL}\nDone. <tool", "Done. <tool")]
)
def test_text_beside_calls_stays(text: str, content: str) -> None:
    (choice,) = body_of(text)["choices"]

    assert choice["message"]["content"] == content
    assert len(choice["message"]["tool_calls"]) == 1


def test_a_cut_answer_says_length() -> None:
    cut = CALL[:20]

    whole, only_text = body_of(CALL + cut, cut, reason=FinishReason.LENGTH)["choices"]

    assert (whole["finish_reason"], whole["message"]["content"]) == ("length", cut)
    assert len(whole["message"]["tool_calls"]) == 1
    assert (only_text["finish_reason"], only_text["message"]["content"]) == ("length", cut)
    assert "tool_calls" not in only_text["message"]


def test_text_without_calls_is_an_ordinary_answer() -> None:
    for use in (USE, None):
        (choice,) = body_of("Hello", use=use)["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
        assert choice["finish_reason"] == "stop"
    (choice,) = body_of(CALL, use=None)["choices"]
    assert choice["message"]["content"] == CALL


def test_a_receipt_names_a_grammar_and_does_not_repeat_it() -> None:
    grammar = Grammar(GrammarKind.REGEX, "x" * 10_000, strict=True)
    result = RowResult(0, (Row(0, "a"),), choices=(Choice((1,), "x", FinishReason.STOP),))

    job = Job(result.rows, (Prompt((1,)),), SamplingParams(3, grammar=grammar))
    line = LineWriter("batch_1", Endpoint.CHAT, PIN).answer(job.rows[0], result, job, ORIGIN)

    shown = json.loads(line)["response"]["body"]["gristmill"]["params"]["grammar"]
    assert (shown["kind"], shown["strict"], len(shown["sha256"])) == ("regex", True, 64)
    assert len(line) < 3000
