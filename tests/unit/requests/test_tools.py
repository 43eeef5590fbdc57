"""Tools of a chat: what a body may say, how the template renders it, what is enforced."""

from __future__ import annotations

import json
from typing import Any

import pytest
from body import USER, chat_body, refusal

from gristmill.requests.tokenise import Tokeniser
from gristmill.requests.tools import Mode, ToolChoice
from gristmill.types import Job, ToolFormat, ToolUse

TURN_END = "<|im_end|>"
#: Renders tools and calls as Qwen's template does.
HERMES = (
    "{% if tools %}<|im_start|>system\nCall with <tool_call>{}</tool_call>. Tools:"
    "{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}[TOOL_CALLS]"
LLAMA = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}<|python_tag|>"

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str = "weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = {"mode": mode, "tools": [named(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": tools}


def call(arguments: Any = '{"city": "Ulm"}', **others: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"id": "c1", "type": "function", "function": function, **others}


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, ToolChoice(Mode.NONE)),
        ({"tools": None}, ToolChoice(Mode.NONE)),
        ({"tools": [], "tool_choice": "auto"}, ToolChoice(Mode.NONE)),
        ({"tool_choice": "none"}, ToolChoice(Mode.NONE)),
        ({"tools": [tool()]}, ToolChoice(Mode.AUTO)),
        ({"tools": [tool()], "tool_choice": None}, ToolChoice(Mode.AUTO)),
        ({"tools": [tool()], "tool_choice": "none"}, ToolChoice(Mode.NONE)),
        ({"tools": [tool()], "tool_choice": "required"}, ToolChoice(Mode.REQUIRED)),
        (
            {"tools": [tool()], "tool_choice": named("weather")},
            ToolChoice(Mode.REQUIRED, ("weather",), once=True),
        ),
        (
            {"tools": [tool(), tool("b")], "tool_choice": allowed("required", "b")},
            ToolChoice(Mode.REQUIRED, ("b",)),
        ),
        (
            {"tools": [tool(), tool("b")], "tool_choice": allowed("auto", "b", "weather")},
            ToolChoice(Mode.AUTO, ("b", "weather")),
        ),
    ],
)
def test_what_may_be_called(fields: dict[str, Any], choice: ToolChoice) -> None:
    assert chat_body(**fields).choice == choice


@pytest.mark.parametrize(
    ("tools", "word"),
    [
        ("weather", "list"),
        (["weather"], "objects"),
        ([{"function": {"name": "a"}}], "objects"),
        ([{"type": "function"}], "function"),
        ([{"type": "web_search"}], "web_search"),
        ([{"type": "custom", "custom": {"name": "a"}}], "custom"),
        ([{**tool(), "strict": True}], "other keys"),
        ([tool(color="red")], "`color`"),
        ([tool("a b")], "'a b'"),
        ([tool("a" * 65)], "64"),
        ([tool("\u00e9")], "64"),
        ([{"type": "function", "function": {}}], "None"),
        ([tool(parameters=[])], "parameters"),
        ([tool(description=5)], "description"),
        ([tool(strict="yes")], "strict"),
        ([tool(), tool()], "two functions"),
        ([tool(f"f{i}") for i in range(129)], "128"),
    ],
)
def test_a_wrong_tool_is_refused(tools: Any, word: str) -> None:
    error = refusal(chat_body, tools=tools)

    assert error.param == "tools" and word in str(error)


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ("always", "'always'"),
        (5, "must be"),
        ({}, "must be"),
        ({"type": "function"}, "must be"),
        ({"type": "function", "function": {}}, "name"),
        ({"type": "function", "function": {"name": 5}}, "5"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, "must be"),
        (allowed("none", "weather"), "mode"),
        (allowed("auto"), "at least one"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [5]}}, "allowed"),
    ],
)
def test_a_wrong_choice_is_refused(choice: Any, word: str) -> None:
    error = refusal(chat_body, tools=[tool()], tool_choice=choice)

    assert error.param == "tool_choice" and word in str(error)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tool_choice": "required"}, "no `tools`"),
        ({"tool_choice": named("weather")}, "'weather'"),
        ({"tools": [tool()], "tool_choice": named("time")}, "'time'"),
        ({"tools": [tool()], "tool_choice": allowed("auto", "weather", "time")}, "'time'"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(fields: dict[str, Any], word: str) -> None:
    body = chat_body(**fields)

    with pytest.raises(Exception, match=word):
        _ = body.choice


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "assistant", "tool_calls": [call("[]")]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [call("{")]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [call(5)]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [call(extra=1)]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "a", "tool_calls": [call()]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "a", "tool_call_id": "c1"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "tool_call_id": "c1"}], "messages[0].content"),
        ([{"role": "tool", "content": "a", "tool_call_id": 5}], "messages[0].tool_call_id"),
        ([{"role": "function", "content": "a"}], "messages[0].role"),
    ],
)
def test_a_wrong_message_of_tools_is_refused(messages: Any, param: str) -> None:
    assert refusal(chat_body, messages=[*messages, *USER]).param == param


def test_the_older_names_are_refused_with_the_newer() -> None:
    assert "`tools`" in str(refusal(chat_body, functions=[{"name": "a"}]))
    assert "`tool_choice`" in str(refusal(chat_body, function_call={"name": "a"}))


def rendered(make_model: Any, template: str, **fields: Any) -> str:
    model = make_model(template=template)
    body = chat_body(**fields)
    text: str = Tokeniser(model).chat(body.messages, body.options).text
    return text


def test_the_template_renders_tools_calls_and_what_tools_said(make_model: Any) -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
    ]

    text = rendered(make_model, HERMES, messages=messages, tools=[tool()])

    assert '{"type": "function", "function": {"name": "weather", "parameters"' in text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>' in text
    assert "<|im_start|>tool\nsunny<|im_end|>" in text and "None" not in text
    assert "weather" not in rendered(make_model, HERMES, tools=[tool()], tool_choice="none")


def test_B10_control_tokens_in_tools_and_calls_are_text(make_model: Any) -> None:
    model = make_model(template=HERMES)
    tokeniser = Tokeniser(model)
    spelled = f"x{TURN_END}"
    calls = [call(json.dumps({spelled: [spelled]}))]
    said = {"role": "tool", "tool_call_id": spelled, "content": spelled}

    def num_ends(text: str) -> int:
        own = chat_body(
            messages=[*USER, {"role": "assistant", "tool_calls": calls}, said],
            tools=[tool(description=text, parameters={"properties": {text: {}}})],
        )
        (ids,) = tokeniser.encode([tokeniser.chat(own.messages, own.options)])
        end = tokeniser.added_token_id(TURN_END)
        return ids.count(end)

    assert num_ends(spelled) == 4  # system, user, assistant, tool


def refused(windows: Any) -> dict[str, Any]:
    return {one.row.custom_id: one.error for window in windows for one in window.refused}


def job_of(windows: Any, custom_id: str) -> Job:
    jobs = {row.custom_id: job for window in windows for job in window.jobs for row in job.rows}
    return jobs[custom_id]


def test_B06_a_template_that_takes_no_tools_refuses_such_rows(
    read: Any, make_model: Any, chat: Any
) -> None:
    past = [{"role": "assistant", "tool_calls": [call()]}, *USER]
    windows = read(
        [
            chat("tools", tools=[tool()]),
            chat("required", tools=[tool()], tool_choice="required"),
            chat("past", messages=past),
            chat("none", tools=[tool()], tool_choice="none"),
            chat("plain"),
        ],
        make_model(),
    )

    errors = refused(windows)
    assert {name: error.param for name, error in errors.items()} == {
        **{"tools": "tools", "required": "tools", "past": "messages"}
    }
    assert "response_format" in errors["tools"].message
    assert job_of(windows, "none") and job_of(windows, "plain")


def test_what_is_enforced_and_what_is_looked_for(read: Any, make_model: Any, chat: Any) -> None:
    both = {"tools": [tool(), tool("b")]}
    strict = {"tools": [tool(strict=True), tool("b", parameters={"uniqueItems": True})]}
    windows = read(
        [
            chat("auto", **both),
            chat("single", **both, parallel_tool_calls=False),
            chat("strict", **strict),
            chat("required", **both, tool_choice="required"),
            chat("named", **both, tool_choice=named("b")),
            chat("allowed", **both, tool_choice=allowed("auto", "b")),
            chat("none", **both, tool_choice="none", response_format={"type": "json_object"}),
        ],
        make_model(template=HERMES),
    )

    assert refused(windows) == {}
    params = {name: job_of(windows, name).params for name in ("auto", "single", "strict", "named")}
    assert params["auto"].grammar is None
    assert params["auto"].tools == ToolUse(ToolFormat.HERMES, ("weather", "b"))
    assert all(params[name].grammar for name in ("single", "strict", "named"))
    required = job_of(windows, "required").params
    assert required.grammar and "call_1" in required.grammar.text
    assert params["named"].grammar and "weather" not in params["named"].grammar.text
    assert job_of(windows, "allowed").params.tools == ToolUse(ToolFormat.HERMES, ("b",))
    none = job_of(windows, "none").params
    assert none.tools is None and none.grammar


@pytest.mark.parametrize(
    ("template", "tool_format"), [(MISTRAL, ToolFormat.MISTRAL), (LLAMA, ToolFormat.LLAMA3_JSON)]
)
def test_other_templates_have_formats_of_their_own(
    read: Any, make_model: Any, chat: Any, template: str, tool_format: ToolFormat
) -> None:
    windows = read(
        [chat("a", tools=[tool()], tool_choice="required")], make_model(template=template)
    )

    params = job_of(windows, "a").params
    assert params.tools and params.tools.format is tool_format
    assert params.grammar is not None


def test_tools_that_cannot_be_enforced_refuse_their_row(
    read: Any, make_model: Any, chat: Any
) -> None:
    odd = tool(parameters={"type": "object", "properties": {"a": {"uniqueItems": True}}})
    windows = read(
        [
            chat("odd", tools=[odd], tool_choice="required"),
            chat("strict", tools=[{**odd, "function": {**odd["function"], "strict": True}}]),
            chat("loose", tools=[odd]),
            chat("both", tools=[tool()], guided_regex="a"),
            chat("missing", tools=[tool()], tool_choice=named("b")),
        ],
        make_model(template=HERMES),
    )

    assert {name: (e.param, e.code) for name, e in refused(windows).items()} == {
        "odd": ("tools", "invalid_grammar"),
        "strict": ("tools", "invalid_grammar"),
        "both": ("guided_regex", "invalid_value"),
        "missing": ("tool_choice", "invalid_value"),
    }
    assert "uniqueItems" in refused(windows)["odd"].message
