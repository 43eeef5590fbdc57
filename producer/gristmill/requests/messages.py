"""The messages of a chat: text with a role, calls of tools that were made, and what tools said."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator
from typing_extensions import TypedDict

from gristmill.requests.fields import invalid, unsupported
from gristmill.requests.tools import past_calls

#: What a message of each role may say beside its role and its content.
_ALSO = {"assistant": {"tool_calls"}, "tool": {"tool_call_id", "name"}}


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
    role = value.get("role")
    if role == "function":
        raise unsupported('is "tool" under an older name; write that', field="role")
    known = {name: field for name, field in value.items() if field is not None}
    if role == "assistant" and known.get("tool_calls") == []:
        del known["tool_calls"]
    for name in known.keys() - {"role", "content"} - _ALSO.get(str(role), set()):
        raise unsupported("is not supported in such a message; leave it out", field=name)
    if "tool_calls" in known:
        known["tool_calls"] = past_calls(known["tool_calls"])
        known.setdefault("content", "")
    return known


class Message(TypedDict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text)]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
