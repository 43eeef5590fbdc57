"""The vectors of a row as the OpenAI API writes them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any

from gristmill.types import RowResult


def embedding_list(result: RowResult, *, model_name: str, as_base64: bool) -> dict[str, Any]:
    """A list object: a vector for each input, in the order of the inputs."""
    prompt_tokens = result.usage.prompt_tokens
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": i,
                "embedding": _base64(choice.embedding) if as_base64 else _floats(choice.embedding),
            }
            for i, choice in enumerate(result.choices)
        ],
        "model": model_name,
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


def _base64(vector: Sequence[float]) -> str:
    """32-bit floats, the lowest byte first."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _floats(vector: Sequence[float]) -> list[float]:
    """Nine digits, which are enough to tell any two 32-bit floats apart."""
    return [float(f"{number:.9g}") + 0.0 for number in vector]
