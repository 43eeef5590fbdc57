"""An answer of a chat with tools: calls that were written in it are taken out of its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gristmill.tool_formats import read_calls
from gristmill.types import ToolFormat, ToolUse


def with_tool_calls(
    entry: dict[str, Any], tools: ToolUse, call_id: Callable[[int], str]
) -> dict[str, Any]:
    """An entry of `choices` with its calls; as it was where it has none.

    `call_id` makes the id of a call from its place. An answer that was cut keeps `length` as its
    reason, whole calls that it has before the cut all the same.
    """
    message = entry["message"]
    text, calls = read_calls(tools.format, message["content"], tools.names)
    if not calls:
        return entry
    # Templates of Mistral take ids of nine letters and digits, and no others.
    is_mistral = tools.format in (ToolFormat.MISTRAL, ToolFormat.MISTRAL_ARGS)
    return {
        **entry,
        "message": {
            **message,
            "content": text or None,
            "tool_calls": [
                {
                    "id": call_id(i)[-9:] if is_mistral else call_id(i),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for i, call in enumerate(calls)
            ],
        },
        "finish_reason": "tool_calls" if entry["finish_reason"] == "stop" else "length",
    }
