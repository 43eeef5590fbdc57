"""Ids of what callers create: the time first, so that a list by id is a list by age."""

from __future__ import annotations

import re
import secrets


def new_id(prefix: str, now_s: float) -> str:
    """`prefix` and 24 hex digits: 48 bits of Unix time in milliseconds, 48 of chance."""
    return f"{prefix}{int(now_s * 1000) & (1 << 48) - 1:012x}{secrets.token_hex(6)}"


def created_at_of(text: str) -> int | None:
    """The Unix time in an id of `new_id`, in seconds; None for what is no such id."""
    digits = re.split("[-_]", text)[-1]
    if not re.fullmatch("[0-9a-f]{24}", digits):
        return None
    return int(digits[:12], 16) // 1000
