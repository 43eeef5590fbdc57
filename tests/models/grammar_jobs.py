"""Rows with a grammar, for models whose tokens are the letters of ascii_tokenizer."""

from __future__ import annotations

import json
from typing import Any

from tiny import prompts

from gristmill.types import Grammar, GrammarKind, Job, Prompt, Row, SamplingParams


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def job(grammar: Grammar | None, prompt: list[int] | None = None, **params: Any) -> Job:
    sampling = SamplingParams(
        **{"max_tokens": 48, "temperature": 1.0, "seed": 5, "grammar": grammar, **params}
    )
    return Job((Row(0, "row"),), (Prompt(tuple(prompt or prompts([6])[0])),), sampling)


PERSON = schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0, "maximum": 20_000_000_000},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
