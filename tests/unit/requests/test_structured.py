"""Structured output: how it is asked for, and what of it is refused, that row alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from body import chat_body, completion_body, refusal

from gristmill.types import Grammar, GrammarKind, Job

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TEXT = json.dumps(PERSON, separators=(",", ":"))
LOOSE = Grammar(GrammarKind.JSON_SCHEMA, TEXT)
STRICT = Grammar(GrammarKind.JSON_SCHEMA, TEXT, strict=True)
ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
CHOICE = Grammar(GrammarKind.CHOICE, '["yes", "n\u00f6"]')


def named(schema: object, **others: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "r", "schema": schema, **others}}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
        ({"response_format": named(PERSON)}, LOOSE),
        ({"response_format": named(PERSON, strict=None, description="a person")}, LOOSE),
        ({"response_format": named(PERSON, strict=True)}, STRICT),
        ({"guided_json": PERSON}, STRICT),
        ({"guided_json": json.dumps(PERSON)}, STRICT),
        ({"guided_regex": "[a-z]+"}, Grammar(GrammarKind.REGEX, "[a-z]+")),
        ({"guided_choice": ["yes", "n\u00f6"]}, CHOICE),
        ({"guided_grammar": "start: /a/"}, Grammar(GrammarKind.LARK, "start: /a/")),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": PERSON, "regex": None}}, STRICT),
        ({"structured_outputs": {"choice": ["yes", "n\u00f6"]}}, CHOICE),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            ANY_OBJECT,
        ),
        (
            {"structured_outputs": {"json_object": False, "regex": "a", "disable_fallback": False}},
            Grammar(GrammarKind.REGEX, "a"),
        ),
    ],
)
def test_every_way_to_ask_for_a_form(fields: dict[str, Any], grammar: Grammar | None) -> None:
    for body in (chat_body(**fields), completion_body(**fields)):
        assert (body.grammar.grammar if body.grammar else None) == grammar


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("response_format", "json", "must be an object"),
        ("response_format", {}, "type"),
        ("response_format", {"type": "xml"}, "'json_schema'"),
        ("response_format", {"type": "json_object", "schema": {}}, "`schema`"),
        ("response_format", {"type": "json_schema"}, "json_schema"),
        ("response_format", {"type": "json_schema", "json_schema": PERSON}, "`properties`"),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}, "`name`"),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "r"}}, "`schema`"),
        ("response_format", named([]), "`schema`"),
        ("response_format", named(PERSON, strict="yes"), "`strict`"),
        ("response_format", named(PERSON, description=5), "`description`"),
        ("guided_json", "{", "no JSON"),
        ("guided_json", [PERSON], "JSON Schema"),
        ("guided_json", "[]", "JSON Schema"),
        ("guided_regex", 5, "string"),
        ("guided_regex", ["a"], "string"),
        ("guided_choice", "yes", "list"),
        ("guided_choice", [], "at least one"),
        ("guided_choice", ["a", ""], "empty"),
        ("guided_choice", ["a", 1], "strings"),
        ("guided_grammar", {}, "Lark"),
        ("structured_outputs", "json", "object"),
        ("structured_outputs", {"json": {}, "regex": "a"}, "`json`, `regex`"),
        ("structured_outputs", {"structural_tag": "x"}, "`structural_tag`"),
        ("structured_outputs", {"json_object": 1}, "`json_object`"),
        ("structured_outputs", {"choice": []}, "at least one"),
    ],
)
def test_a_form_that_is_wrong_is_refused_by_its_name(field: str, value: object, word: str) -> None:
    for read in (chat_body, completion_body):
        error = refusal(read, **{field: value})
        assert error.param == field and error.status_code == 400
        assert word in str(error) and field in str(error)


def test_two_forms_are_refused() -> None:
    body = chat_body(response_format={"type": "json_object"}, guided_regex="a")

    with pytest.raises(Exception, match="`response_format` and `guided_regex` both"):
        _ = body.grammar


Schema = dict[str, Any]


def refused(windows: Any) -> dict[str, Any]:
    return {one.row.custom_id: one.error for window in windows for one in window.refused}


def jobs(windows: Any) -> dict[str, Job]:
    return {job.rows[0].custom_id: job for window in windows for job in window.jobs}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        # What llguidance cannot enforce is refused, by its name.
        ({"guided_json": {"not": {"type": "string"}}}, '["not"]'),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"response_format": named({"if": {}, "then": {}})}, '"if"'),
        ({"response_format": named({"type": "string", "format": "colour"})}, "colour"),
        ({"guided_json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        # What the caller's own options would take back from that.
        ({"guided_json": {"x-guidance": {"lenient": True}, "not": {}}}, '["not"]'),
        # What is wrong or impossible.
        ({"guided_json": {"type": "foo"}}, "foo"),
        ({"guided_json": {"type": "object", "properties": {"a": {"minLength": "x"}}}}, "minLength"),
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 2}}, "minimum (5)"),
        ({"guided_json": {"enum": []}}, "anyOf is empty"),
        (
            {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
            "no answer",
        ),
        ({"guided_json": {"type": "string", "x": {"required": 1}, "required": 5}}, "array"),
        # What would be fetched from elsewhere, wherever it stands.
        ({"guided_json": {"$ref": "http://127.0.0.1:1/schema"}}, "127.0.0.1"),
        ({"guided_json": {"type": "string", "$defs": {"u": {"$ref": "file:///x"}}}}, "file:///x"),
        ({"guided_json": {"$schema": "http://127.0.0.1:1/meta", "type": "string"}}, "127.0.0.1"),
        ({"guided_regex": "[a-z"}, "unclosed"),
        ({"guided_grammar": "start: nowhere"}, "nowhere"),
        ({"guided_grammar": 'root ::= "gbnf"'}, "="),
        ({"guided_grammar": ""}, "Empty grammar"),
        ({"guided_grammar": "start: start"}, "no answer can satisfy it"),
    ],
)
def test_B27_a_form_that_cannot_be_enforced_refuses_its_row_and_no_other(
    read: Any, chat: Any, completion: Any, fields: dict[str, Any], reason: str
) -> None:
    windows = read([chat("bad", **fields), chat("good", guided_json=PERSON), chat("plain")])

    error = refused(windows)["bad"]
    assert (error.code, error.param, error.status_code) == (
        "invalid_grammar",
        next(iter(fields)),
        400,
    )
    assert reason in error.message and "README" in error.message
    assert jobs(windows)["good"].params.grammar == STRICT
    assert jobs(windows)["plain"].params.grammar is None
    assert "bad" in refused(read([completion("bad", **fields)]))


def test_a_grammar_may_not_be_huge(read: Any, chat: Any) -> None:
    names = [f"a long name of a property {i}" for i in range(10_000)]
    huge = {"type": "object", "properties": {name: {"type": "string"} for name in names}}

    error = refused(read([chat("a", guided_json=huge)]))["a"]

    assert error.code == "grammar_too_large" and "262,144" in error.message


BRANCHING = {"anyOf": [{"type": "object", "properties": {f"k{i}": {}}} for i in range(9)]}


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "(a{300}){300}"},
        {"guided_json": {"type": "string", "pattern": "(a|b)*c(a|b){200}"}},
        {"guided_json": {"allOf": [BRANCHING] * 6}},
        {"guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}},
        {"guided_grammar": 'start: "a"{1,1000000000}'},
        {"guided_json": {"type": "object", "properties": {str(i): {} for i in range(500)}}},
    ],
)
def test_a_form_that_is_hard_to_compile_takes_seconds_at_most(
    read: Any, chat: Any, fields: dict[str, Any]
) -> None:
    begin = time.process_time()

    windows = read([chat("a", **fields), chat("b")])

    assert time.process_time() - begin < 20
    assert "b" in jobs(windows)


def test_a_grammar_is_compiled_once(read: Any, chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.requests import grammars

    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return make(*args)

    make = grammars.make_matcher
    monkeypatch.setattr(grammars, "make_matcher", counted)
    own = {**PERSON, "title": "only in this test"}

    windows = read([chat(f"{i}", f"{i}", guided_json=own) for i in range(20)])

    assert len(jobs(windows)) == 20 and len(calls) == 1


def test_a_tokenizer_that_cannot_be_read_refuses_rows_with_a_grammar_only(
    read: Any, make_model: Any, chat: Any
) -> None:
    windows = read([chat("a", guided_json=PERSON), chat("b")], make_model("merged"))

    error = refused(windows)["a"]
    assert error.code == "invalid_grammar" and "tokenizer" in error.message
    assert "b" in jobs(windows)


def test_identical_rows_share_a_job_only_with_the_same_form(read: Any, chat: Any) -> None:
    windows = read(
        [
            chat("a", temperature=0),
            chat("b", temperature=0, guided_json=PERSON),
            chat("c", temperature=0, guided_json=PERSON),
        ]
    )

    assert sorted(len(job.rows) for job in windows[0].jobs) == [1, 2]
