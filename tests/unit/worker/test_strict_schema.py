"""A finished document is checked against its strict schema before its row counts as answered."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pipeline import make_job

from gristmill.types import FinishReason, Grammar, GrammarKind, Job
from gristmill_worker.choices import assemble
from gristmill_worker.engine.base import Finished, Generated

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
STRICT = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA), strict=True)


def job(grammar: Grammar | None) -> Job:
    plain = make_job(1)
    return replace(plain, params=replace(plain.params, grammar=grammar, n=2, temperature=1.0))


def end(text: str, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished("x", generated=Generated((1,), (5,)), text=text, finish_reason=reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"b":1}', "required property"),
        ('{"a":"x"}', "at ['a']"),
        ('{"a":', "Expecting value"),
        ("", "Expecting value"),
        ('{"a":1e999}', "number"),
        ("[" * 5000, "recursion"),
    ],
)
def test_a_document_that_does_not_satisfy_it_is_an_error_of_its_row(text: str, reason: str) -> None:
    result = assemble(0, job(STRICT), {0: end('{"a":1}'), 1: end(text)}, at=3)

    assert result.error and result.choices == ()
    assert (result.error.code, result.error.status_code) == ("model_output_invalid", 500)
    assert reason in result.error.message and "strict" in result.error.message


def test_documents_that_satisfy_it_or_were_cut_are_answers() -> None:
    ends = {0: end('{"a":1.5}'), 1: end('{"a":', FinishReason.LENGTH)}

    result = assemble(0, job(STRICT), ends, at=3)

    assert result.error is None
    assert [choice.text for choice in result.choices] == ['{"a":1.5}', '{"a":']


def test_nothing_is_checked_where_it_is_not_strict() -> None:
    loose = replace(STRICT, strict=False)
    regex = Grammar(GrammarKind.REGEX, "a", strict=True)

    for grammar in (None, loose, regex):
        result = assemble(0, job(grammar), {0: end("a"), 1: end("a")}, at=3)
        assert result.error is None and len(result.choices) == 2
