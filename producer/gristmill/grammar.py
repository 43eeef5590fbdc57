"""What a Grammar means to llguidance: the one place for both sides, so that what was checked at
ingest is what is enforced. Only the standard library is imported before a grammar is asked for.

JSON has no blanks between its parts, in the order of the schema's properties: a model that may
write blanks can write them without end.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from gristmill.errors import UsageError
from gristmill.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: What wins over `x-guidance` in a schema: no blanks, and no keyword is left out in silence.
JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}
# A grammar is a program of the caller's. llguidance's own limits, but for memory: a state of the
# lexer takes one to two kilobytes, and each row has states of its own.
_LIMITS = {"max_lexer_states": 20_000, "max_grammar_size": 100_000, "verbose_errors": False}


def llguidance_text(grammar: Grammar) -> str:
    """The grammar as llguidance reads it. Raises ValueError for a text that is no JSON Schema."""
    matcher = _llguidance().LLMatcher
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        text: str = matcher.grammar_from_json_schema(grammar.text, overrides=JSON_OPTIONS)
        return text
    if grammar.kind is GrammarKind.REGEX:
        return str(matcher.grammar_from_regex(grammar.text))
    if grammar.kind is GrammarKind.CHOICE:
        return "start: " + " | ".join(map(quoted, json.loads(grammar.text)))
    return grammar.text


def quoted(text: str) -> str:
    """A string as grammars in llguidance's language have it."""
    return json.dumps(text, ensure_ascii=False)


def make_matcher(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """A fresh matcher; whether it is in error is to be asked of it. Raises ValueError as above.

    Each row has one of its own rather than a copy: copies share what their lexer has learned and
    its limits, so that a row could fail for what another one wrote.
    """
    llguidance = _llguidance()
    matcher: LLMatcher = llguidance.LLMatcher(
        tokenizer,
        llguidance_text(grammar),
        log_level=0,
        limits=llguidance.LLParserLimits(**_LIMITS),
    )
    return matcher


def make_tokenizer(
    tokenizer_json: str, *, vocab_size: int, eos_token_ids: Collection[int]
) -> LLTokenizer:
    """llguidance's view of a vocabulary. Takes up to a second. Raises ValueError for kinds of
    tokenizers that it cannot read."""
    tokenizer: LLTokenizer = _llguidance().LLTokenizer(
        tokenizer_json, n_vocab=vocab_size, eos_token=sorted(eos_token_ids) or None
    )
    return tokenizer


def schema_problem(text: str) -> str | None:
    """Why a text is no JSON Schema by which documents can be checked."""
    try:
        _validator(text)
    except ValueError as error:  # jsonschema-rs derives its errors from it
        return readable(str(getattr(error, "message", error)))
    return None


def violation(grammar: Grammar, answer: str) -> str | None:
    """Why a finished answer does not satisfy its strict schema; None where it does or has none."""
    if not grammar.strict or grammar.kind is not GrammarKind.JSON_SCHEMA:
        return None
    try:
        _validator(grammar.text).validate(json.loads(answer))
    except (ValueError, RecursionError) as error:
        place = "".join(f"[{step!r}]" for step in getattr(error, "instance_path", ()))
        reason = readable(str(getattr(error, "message", error)))
        return f"{reason}, at {place}" if place else reason
    return None


@lru_cache(maxsize=64)
def _validator(schema_text: str) -> Any:
    """A second implementation of JSON Schema, for what a grammar might get wrong."""
    try:
        import jsonschema_rs
    except ImportError as error:
        raise UsageError(
            "Structured output needs the package jsonschema-rs: pip install 'gristmill[server]' "
            "where requests are read, 'gristmill[worker]' where they are computed."
        ) from error

    def refuse(uri: str) -> NoReturn:
        raise ValueError(f"{uri} is not fetched")  # a schema must not reach out from here

    return jsonschema_rs.validator_for(json.loads(schema_text), retriever=refuse)


def readable(error: str) -> str:
    """What llguidance says, as part of a sentence."""
    text = " ".join(error.replace("<non-verbose/>", "").split())
    if text.startswith("NoExtension"):
        return "no answer can satisfy it"
    return text if len(text) <= 300 else f"{text[:297]}..."


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UsageError(
            "Structured output needs the package llguidance: pip install 'gristmill[server]' "
            "where requests are read, 'gristmill[worker]' where they are computed."
        ) from error
    return llguidance
