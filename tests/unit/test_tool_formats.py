"""How models write calls of tools: recognised, enforced, read back, and never lost."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gristmill.grammar import make_matcher, make_tokenizer
from gristmill.tool_formats import (
    Tool,
    ToolCall,
    calls_grammar,
    format_of,
    markers_of,
    read_calls,
    text_or_calls_grammar,
)
from gristmill.types import Grammar, GrammarKind, ToolFormat

HERMES, LLAMA, MISTRAL, ARGS = ToolFormat
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER, TIME = Tool("weather", CITY), Tool("time", {"type": "object", "properties": {}})
NAMES = ("weather", "time")
ULM, BONN = '{"city": "Ulm"}', '{"city": "Bonn"}'
#: Two calls, as each format has them.
WRITTEN = {
    HERMES: f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "weather", "arguments": {BONN}}}\n</tool_call>',
    LLAMA: f'{{"name": "weather", "parameters": {ULM}}}; '
    f'{{"name": "weather", "parameters": {BONN}}}',
    MISTRAL: f'[TOOL_CALLS][{{"name": "weather", "arguments": {ULM}}}, '
    f'{{"name": "weather", "arguments": {BONN}}}]',
    ARGS: f"[TOOL_CALLS]weather[ARGS]{ULM}[TOOL_CALLS]weather[ARGS]{BONN}",
}
ONE = {
    HERMES: f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>',
    LLAMA: f'{{"name": "weather", "parameters": {ULM}}}',
    MISTRAL: f'[TOOL_CALLS][{{"name": "weather", "arguments": {ULM}}}]',
    ARGS: f"[TOOL_CALLS]weather[ARGS]{ULM}",
}
CALLS = [ToolCall("weather", ULM), ToolCall("weather", BONN)]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ tools }} answer with <tool_call>{}</tool_call>", HERMES),
        ("[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ("{{ tools }}[TOOL_CALLS]f[ARGS]{}", ARGS),
        ("{{ tools }}<|python_tag|>", LLAMA),
        ('{{ tools }}"parameters": role == "ipython"', LLAMA),
        ("{{ tools }}", HERMES),
    ],
)
def test_a_template_shows_the_format_of_its_model(template: str, expected: ToolFormat) -> None:
    assert format_of(template) is expected


@pytest.mark.parametrize("tool_format", ToolFormat)
def test_calls_are_read_back(tool_format: ToolFormat) -> None:
    assert read_calls(tool_format, WRITTEN[tool_format], NAMES) == ("", CALLS)
    assert read_calls(tool_format, ONE[tool_format], NAMES) == ("", CALLS[:1])


@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL, ARGS])
def test_text_around_calls_is_kept(tool_format: ToolFormat) -> None:
    text = f"Let me see.\n{ONE[tool_format]}\nDone."

    assert read_calls(tool_format, text, NAMES) == ("Let me see.\nDone.", CALLS[:1])


@pytest.mark.parametrize("tool_format", ToolFormat)
@pytest.mark.parametrize(
    "broken",
    [
        lambda one: one[:-3],  # cut short
        lambda one: one.replace("weather", "rocket"),  # no such function
        lambda one: one.replace('{"city": "Ulm"}', '"Ulm"'),
        lambda one: one.replace('"Ulm"', "1e999"),
        lambda one: one.replace('"Ulm"', "NaN"),
        lambda one: one.replace('"Ulm"', '"Ulm'),
        lambda one: "",
        lambda one: "{" * 5000,
        lambda one: "<tool_call>" * 3 + "[TOOL_CALLS]",
    ],
)
def test_what_is_no_call_stays_text(tool_format: ToolFormat, broken: Any) -> None:
    text = broken(ONE[tool_format])

    found, calls = read_calls(tool_format, text, NAMES)

    assert (found, calls) == (text, [])


def test_leniently_read() -> None:
    unclosed = ONE[HERMES].removesuffix("\n</tool_call>")
    spaced = ONE[HERMES].replace("\n", " \n\t ")
    other_key = ONE[HERMES].replace("arguments", "parameters")
    without = '<tool_call>{"name": "time"}</tool_call>'
    surrogate = ONE[HERMES].replace("Ulm", "\\ud800")

    for text in (unclosed, spaced, other_key):
        assert read_calls(HERMES, text, NAMES) == ("", CALLS[:1])
    assert read_calls(HERMES, without, NAMES) == ("", [ToolCall("time", "{}")])
    assert read_calls(LLAMA, "<|python_tag|>" + ONE[LLAMA], NAMES) == ("", CALLS[:1])
    assert read_calls(HERMES, surrogate, NAMES)[1][0].arguments == '{"city": "\\ud800"}'
    both = ONE[HERMES].replace("weather", "rocket") + ONE[HERMES]
    assert read_calls(HERMES, both, NAMES)[0].count("rocket") == 1


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "weather", "{", "}", "[", "]"),
        *('{"name": "weather", "arguments": {"city": 1}}', '"', ",", ";", " ", "\n", "a", "\u00e9"),
    ]
)


@settings(max_examples=300)
@given(pieces=st.lists(PIECES, max_size=12), tool_format=st.sampled_from(list(ToolFormat)))
def test_no_text_is_lost(pieces: list[str], tool_format: ToolFormat) -> None:
    text = "".join(pieces)

    rest, calls = read_calls(tool_format, text, NAMES)

    assert calls or rest == text
    assert rest.count("\u00e9") == text.count("\u00e9")
    assert {call.arguments for call in calls} <= {'{"city": 1}', "{}"}


@cache
def tokenizer_with(markers: bool) -> tuple[Any, Any]:
    """One of single bytes, which may have tokens for the markers of all formats."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    if markers:
        names = {m for tool_format in ToolFormat for m in markers_of(tool_format)}
        special = {name: name[0] == "[" for name in names}
        tokenizer.add_tokens([AddedToken(n, special=special[n]) for n in sorted(names)])
    eos = tokenizer.token_to_id("</s>")
    size = tokenizer.get_vocab_size()
    return tokenizer, make_tokenizer(tokenizer.to_str(), vocab_size=size, eos_token_ids=[eos])


def accepts(grammar: str, text: str, *, markers: bool) -> bool:
    tokenizer, for_grammars = tokenizer_with(markers)
    matcher = make_matcher(for_grammars, Grammar(GrammarKind.LARK, grammar))
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def id_of(markers: bool) -> Any:
    added = {t.content: i for i, t in tokenizer_with(markers)[0].get_added_tokens_decoder().items()}
    return added.get


@pytest.mark.parametrize("markers", [True, False], ids=["one token", "spelled"])
@pytest.mark.parametrize("tool_format", ToolFormat)
def test_the_grammar_allows_calls_and_nothing_else(tool_format: ToolFormat, markers: bool) -> None:
    one, two = ONE[tool_format], WRITTEN[tool_format]
    make = {"tools": [WEATHER, TIME], "token_id_of": id_of(markers)}

    several = calls_grammar(tool_format, parallel=True, **make)
    single = calls_grammar(tool_format, parallel=False, **make)

    assert accepts(several, one, markers=markers) and accepts(several, two, markers=markers)
    assert accepts(single, one, markers=markers) and not accepts(single, two, markers=markers)
    for other in ("", "Hi", "{}", one.replace("weather", "rocket"), one.replace('"Ulm"', "5")):
        assert not accepts(several, other, markers=markers)


@pytest.mark.parametrize("markers", [True, False], ids=["one token", "spelled"])
@pytest.mark.parametrize("tool_format", ToolFormat)
def test_the_grammar_of_auto_allows_text_and_right_calls(
    tool_format: ToolFormat, markers: bool
) -> None:
    one, two = ONE[tool_format], WRITTEN[tool_format]
    grammar = text_or_calls_grammar(
        tool_format, [WEATHER, TIME], parallel=False, token_id_of=id_of(markers)
    )

    for text in ("", "Hi there.", "It is 5 < 6, [see] {this}.\n\u00e9", one):
        assert accepts(grammar, text, markers=markers)
    if tool_format is not LLAMA:
        assert accepts(grammar, f"I look. {one}", markers=markers)
    for wrong in (one.replace('"Ulm"', "5"), one.replace("weather", "rocket"), two):
        assert not accepts(grammar, wrong, markers=markers)


def test_arguments_of_calls_that_were_enforced_are_json() -> None:
    rest, (call,) = read_calls(ARGS, ONE[ARGS], NAMES)

    assert rest == "" and json.loads(call.arguments) == {"city": "Ulm"}
