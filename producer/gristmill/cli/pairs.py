"""NAME=VALUE on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gristmill.errors import UsageError


def text_pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Raises UsageError for what has no `=`, or a name twice."""
    found: dict[str, str] = {}
    for pair in given or ():
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {pair!r}: write NAME=VALUE.")
        if name in found:
            raise UsageError(f"{option} {name!r} is given twice.")
        found[name] = text
    return found


def json_pairs(given: Sequence[str] | None, option: str) -> dict[str, Any]:
    """The same with values that are JSON where they can be: `0.2`, `true`, `["a"]`; else text."""
    return {name: _value(text) for name, text in text_pairs(given, option).items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
