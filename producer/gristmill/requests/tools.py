"""The tools of a chat: which functions may be called, whether one must be, and past calls.

Only checked and brought into one form here; what the model's template makes of it and how calls
are enforced is in constrain.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator

from gristmill.errors import RowRefused
from gristmill.requests.fields import invalid, unsupported
from gristmill.tool_formats import Tool

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: A function without parameters takes none.
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Mode(Enum):
    """Whether an answer is text or calls of tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names` are the functions that may be called; None: all. A named one is called just once."""

    mode: Mode = Mode.AUTO
    names: tuple[str, ...] | None = None
    once: bool = False


_NO_TOOLS = ToolChoice(Mode.NONE)


def read_tools(value: object) -> tuple[dict[str, Any], ...]:
    """Definitions of functions as templates know them: {"type": "function", "function": {…}}."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid("must be a list of functions")
    if len(value) > MAX_TOOLS:
        raise invalid(f"has {len(value)} functions; {MAX_TOOLS} are the most")
    definitions = [_definition(item) for item in value]
    names = [item["function"]["name"] for item in definitions]
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"has two functions of the name {name!r}")
    return tuple(definitions)


def _definition(value: object) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise invalid('must hold objects such as {"type": "function", "function": {"name": …}}')
    if kind != "function":
        raise unsupported(f"has a tool of the type {kind!r}; functions are supported")
    function = value.get("function")
    if value.keys() != {"type", "function"} or not isinstance(function, dict):
        raise invalid("has a tool with other keys than `type` and `function`, which is an object")
    unknown = function.keys() - {"name", "description", "parameters", "strict"}
    if unknown:
        raise invalid(f"has a function with `{min(unknown)}`, which means nothing there")
    name = _name(function.get("name"))
    if not isinstance(function.get("description"), str | None):
        raise invalid(f"has a `description` of {name!r} that is no string")
    if not isinstance(function.get("parameters"), dict | None):
        raise invalid(f"has `parameters` of {name!r} that are no JSON Schema, which is an object")
    if not isinstance(function.get("strict"), bool | None):
        raise invalid(f"has a `strict` of {name!r} that is neither true nor false")
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid(
            f"has {value!r} where the name of a function belongs: 1 to 64 letters, digits, _ and -"
        )
    return value


def as_tools(definitions: Sequence[dict[str, Any]]) -> list[Tool]:
    """The functions of definitions that were checked."""
    return [
        Tool(
            function["name"],
            function.get("parameters") or _NO_PARAMETERS,
            function.get("strict", False),
        )
        for function in (definition["function"] for definition in definitions)
    ]


def read_tool_choice(value: object) -> ToolChoice | None:
    """ "none", "auto", "required", a function by name, or some that are allowed."""
    if value is None:
        return None
    if isinstance(value, str):
        if value not in {mode.value for mode in Mode}:
            raise invalid(f"is {value!r}; known are 'none', 'auto', 'required', and an object")
        return ToolChoice(Mode(value))
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind == "function" and value.keys() == {"type", "function"}:
        return ToolChoice(Mode.REQUIRED, (_named(value["function"]),), once=True)
    if isinstance(value, dict) and kind == "allowed_tools" and len(value) == 2:
        allowed = value.get("allowed_tools")
        if isinstance(allowed, dict) and allowed.keys() == {"mode", "tools"}:
            return _allowed(allowed["mode"], allowed["tools"])
    raise invalid(
        'must be a string, {"type": "function", "function": {"name": …}} or {"type": '
        '"allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}'
    )


def _allowed(mode: object, allowed: object) -> ToolChoice:
    if mode not in ("auto", "required"):
        raise invalid("has a `mode` of allowed tools other than 'auto' and 'required'")
    if not isinstance(allowed, list) or not allowed:
        raise invalid("must name at least one allowed tool")
    names = []
    for item in allowed:
        if not isinstance(item, dict) or item.get("type") != "function":
            raise invalid('has an allowed tool that is no {"type": "function", "function": …}')
        names.append(_named(item.get("function")))
    return ToolChoice(Mode(mode), tuple(names))


def _named(function: object) -> str:
    if not isinstance(function, dict) or function.keys() != {"name"}:
        raise invalid('has a `function` that is no {"name": …}')
    return _name(function["name"])


def past_calls(value: object) -> list[dict[str, Any]]:
    """`tool_calls` of a message, with their arguments as objects: so templates want them."""
    if not isinstance(value, list) or not value:
        raise invalid("must be a list of calls", field="tool_calls")
    return [_past_call(item) for item in value]


def _past_call(value: object) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if (
        not isinstance(value, dict)
        or value.keys() - {"index"} != {"id", "type", "function"}
        or value["type"] != "function"
        or not isinstance(value["id"], str)
        or not isinstance(function, dict)
        or function.keys() != {"name", "arguments"}
        or not isinstance(function["name"], str)
    ):
        raise invalid(
            'must hold {"id": …, "type": "function", "function": {"name": …, "arguments": …}}',
            field="tool_calls",
        )
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise invalid(
            f"has arguments for {function['name']!r} that are no JSON object", field="tool_calls"
        )
    call = {"name": function["name"], "arguments": arguments}
    return {"id": value["id"], "type": "function", "function": call}


class ToolFields(BaseModel):
    """The part of a chat that says which functions may be called."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    tools: Annotated[tuple[dict[str, Any], ...], PlainValidator(read_tools)] = ()
    tool_choice: Annotated[ToolChoice | None, PlainValidator(read_tool_choice)] = None
    parallel_tool_calls: bool | None = None

    @property
    def choice(self) -> ToolChoice:
        """`tool_choice` with its default. Raises RowRefused when it names what is not there."""
        if not self.tools and self.tool_choice is None:
            return _NO_TOOLS
        choice = self.tool_choice or ToolChoice()
        if not self.tools and choice.mode is not Mode.REQUIRED and choice.names is None:
            return _NO_TOOLS
        known = [tool["function"]["name"] for tool in self.tools]
        missing = [name for name in choice.names or () if name not in known]
        if missing or not known:
            raise RowRefused(
                f"`tool_choice` wants {missing[0]!r} to be called, which is none of the `tools`."
                if missing
                else "`tool_choice` wants a function to be called, and there are no `tools`.",
                param="tool_choice",
                code="invalid_value",
            )
        return choice
