"""Fields of a body that are more than one number or string: stop, messages, prompt, token ids."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

MAX_STOP_STRINGS = 4


def unsupported(text: str, *, field: str = "") -> PydanticCustomError:
    return PydanticCustomError("unsupported_parameter", "{text}", {"text": text, "field": field})


def invalid(text: str, *, field: str = "") -> PydanticCustomError:
    return PydanticCustomError("invalid_value", "{text}", {"text": text, "field": field})


def stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = value if type(value) is list else [value]
    if any(type(string) is not str for string in strings):
        raise invalid("must be a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid(f"must have at most {MAX_STOP_STRINGS} strings, not {len(strings)}")
    if "" in strings:
        raise invalid("must not contain an empty string, which would stop every answer at once")
    return tuple(strings)


def _text(value: object) -> object:
    """The text of a message: a string, or text parts, which are joined."""
    if type(value) is not list:
        return value
    return "".join(_part_text(part) for part in value)


def _part_text(part: object) -> str:
    if type(part) is not dict or type(part.get("type")) is not str:
        raise invalid('must be a string or a list of {"type": "text", "text": ...} parts')
    if part["type"] != "text":
        raise unsupported(f"has a part of type {part['type']!r}; only text is supported yet")
    if part.keys() != {"type", "text"} or type(part["text"]) is not str:
        raise invalid("has a text part with other keys than `type` and `text`, which is a string")
    return str(part["text"])


def message(value: object) -> object:
    """Refuses by name what would be lost; keys that are null, as SDKs write them, say nothing."""
    if type(value) is not dict:
        return value
    if value.get("role") in ("tool", "function"):
        raise unsupported("messages of tools are not supported yet; remove them", field="role")
    known = {name: field for name, field in value.items() if field is not None}
    for name in known:
        if name not in ("role", "content"):
            raise unsupported("is not supported yet in a message; leave it out", field=name)
    return known


def token_ids(value: object) -> tuple[int, ...]:
    """Sorted and each once, so that rows which mean the same are equal."""
    if value is None:
        return ()
    if type(value) is not list or any(type(item) is not int for item in value):
        raise invalid("must be a list of integers, the ids of tokens")
    return tuple(sorted(set(value)))


class Message(TypedDict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text)]


def prompt(value: object) -> str | tuple[int, ...]:
    """A text or token ids; a list that holds one of these means the same as it alone."""
    if type(value) is list and len(value) == 1 and type(value[0]) in (str, list):
        value = value[0]
    if type(value) is str:
        return value
    if type(value) is not list:
        raise invalid("must be a string or a list of token ids")
    if any(type(item) in (str, list) for item in value):
        raise unsupported("has several prompts, which is not supported yet; write a line for each")
    if any(type(item) is not int for item in value):
        raise invalid("must hold integers only, the ids of tokens")
    return tuple(value)
