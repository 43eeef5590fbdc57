"""The fields of a body that say what its answer may look like: each to a Grammar.

response_format is the API's own; guided_json, guided_regex, guided_choice, guided_grammar and
structured_outputs are how other engines spell the same. Whether a grammar compiles is looked at
later, with the model's tokenizer (grammars.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator

from gristmill.errors import RowRefused
from gristmill.requests.fields import invalid, unsupported
from gristmill.types import Grammar, GrammarKind

#: Any JSON object.
JSON_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
#: What says nothing in `structured_outputs`, as other engines write it out.
_NEUTRAL = (None, False)


def read_response_format(value: object) -> Grammar | None:
    """{"type": "text" | "json_object"} or {"type": "json_schema", "json_schema": {…}}."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid('must be an object with a `type`, such as {"type": "json_object"}')
    kind, rest = value.get("type"), value.keys() - {"type"}
    if kind in ("text", "json_object"):
        if rest:
            raise invalid(f"of type {kind!r} takes no {_names(rest)}")
        return JSON_OBJECT if kind == "json_object" else None
    if kind != "json_schema":
        raise invalid(f"has the type {kind!r}; known are 'text', 'json_object' and 'json_schema'")
    if rest != {"json_schema"} or not isinstance(value["json_schema"], dict):
        raise invalid("of type 'json_schema' has an object `json_schema` beside it, and no more")
    return _named_schema(value["json_schema"])


def _named_schema(value: Mapping[str, Any]) -> Grammar:
    unknown = value.keys() - {"name", "description", "schema", "strict"}
    if unknown:
        raise invalid(f"has {_names(unknown)} in `json_schema`, which means nothing there")
    if not isinstance(value.get("name"), str):
        raise invalid("needs a string `name` in `json_schema`")
    if not isinstance(value.get("description"), str | None):
        raise invalid("has a `description` in `json_schema` that is no string")
    if not isinstance(value.get("strict"), bool | None):
        raise invalid("has a `strict` in `json_schema` that is neither true nor false")
    if not isinstance(value.get("schema"), dict):
        raise invalid("needs a JSON Schema, which is an object, as `schema` in `json_schema`")
    return _schema(value["schema"], strict=value.get("strict") or False)


def read_guided_json(value: object) -> Grammar | None:
    """A JSON Schema, or its text. The finished document is checked, as if it were `strict`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise invalid("is a string that is no JSON") from None
    if value is not None and not isinstance(value, dict):
        raise invalid("must be a JSON Schema: an object, or an object's JSON as a string")
    return None if value is None else _schema(value, strict=True)


def read_guided_regex(value: object) -> Grammar | None:
    if value is not None and not isinstance(value, str):
        raise invalid("must be a string, a regular expression that matches the whole answer")
    return None if value is None else Grammar(GrammarKind.REGEX, value)


def read_guided_choice(value: object) -> Grammar | None:
    if value is None:
        return None
    if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
        raise invalid("must be a list of strings, of which the answer is one")
    if not value or "" in value:
        raise invalid("must have at least one string, and none that is empty")
    return Grammar(GrammarKind.CHOICE, json.dumps(value, ensure_ascii=False))


def read_guided_grammar(value: object) -> Grammar | None:
    if value is not None and not isinstance(value, str):
        raise invalid("must be a string, a grammar in llguidance's variant of Lark")
    return None if value is None else Grammar(GrammarKind.LARK, value)


def _any_object(value: object) -> Grammar | None:
    if value is not True:
        raise invalid("has a `json_object` that is not true")
    return JSON_OBJECT


_KINDS: Mapping[str, Callable[[object], Grammar | None]] = {
    "json": read_guided_json,
    "regex": read_guided_regex,
    "choice": read_guided_choice,
    "grammar": read_guided_grammar,
    "json_object": _any_object,
}


def read_structured_outputs(value: object) -> Grammar | None:
    """{"json" | "regex" | "choice" | "grammar" | "json_object": …}, one of them."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid(f"must be an object with one of {_names(_KINDS)}")
    given = {name: item for name, item in value.items() if item not in _NEUTRAL}
    for name in given.keys() - _KINDS.keys():
        if name != "disable_any_whitespace":  # there never is any
            raise unsupported(f"has `{name}`, which is not supported; known are {_names(_KINDS)}")
    kinds = [name for name in _KINDS if name in given]
    if len(kinds) > 1:
        raise invalid(f"has {_names(kinds)}; one of them must say what the answer looks like")
    return _KINDS[kinds[0]](given[kinds[0]]) if kinds else None


def _schema(schema: Mapping[str, Any], *, strict: bool) -> Grammar:
    # In the order of the caller: it is the order of the properties in the answer.
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return Grammar(GrammarKind.JSON_SCHEMA, text, strict)


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


@dataclass(frozen=True, slots=True)
class Wish:
    """A grammar, and the field that it stands in."""

    param: str
    grammar: Grammar


class StructuredFields(BaseModel):
    """The part of a body that says what the answer looks like."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    response_format: Annotated[Grammar | None, PlainValidator(read_response_format)] = None
    structured_outputs: Annotated[Grammar | None, PlainValidator(read_structured_outputs)] = None
    guided_json: Annotated[Grammar | None, PlainValidator(read_guided_json)] = None
    guided_regex: Annotated[Grammar | None, PlainValidator(read_guided_regex)] = None
    guided_choice: Annotated[Grammar | None, PlainValidator(read_guided_choice)] = None
    guided_grammar: Annotated[Grammar | None, PlainValidator(read_guided_grammar)] = None

    @property
    def grammar(self) -> Wish | None:
        """Raises RowRefused where several fields say it."""
        wishes = [
            Wish(name, grammar) for name in _WISHES if (grammar := getattr(self, name)) is not None
        ]
        if len(wishes) > 1:
            raise RowRefused(
                f"`{wishes[0].param}` and `{wishes[1].param}` both say what the answer looks like. "
                "Leave one of them out.",
                param=wishes[1].param,
                code="invalid_value",
            )
        return wishes[0] if wishes else None


_WISHES = tuple(StructuredFields.model_fields)
