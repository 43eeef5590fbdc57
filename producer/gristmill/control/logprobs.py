"""How tokens and their log-probabilities are written."""

from __future__ import annotations

import math


def name(token: bytes) -> str:
    """A token as text, or as bytes:\\xf0\\x9f where it is only a part of a character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def rounded(logprob: float) -> float | None:
    """Seven digits: all that 32 bits hold. Never -0.0; null for a token that is impossible."""
    return None if math.isinf(logprob) else float(f"{logprob:.7g}") + 0.0
