"""Ids of what callers create: the time first, so that a list by id is a list by age."""

from __future__ import annotations

import secrets


def new_id(prefix: str, now_s: float) -> str:
    """`prefix` and 24 hex digits: 48 bits of Unix time in milliseconds, 48 of chance."""
    return f"{prefix}{int(now_s * 1000) & (1 << 48) - 1:012x}{secrets.token_hex(6)}"
