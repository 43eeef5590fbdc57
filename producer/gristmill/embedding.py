"""How a vector is made from the hidden states of a prompt. Values only, like types.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pooling(StrEnum):
    """Which hidden states make the vector: their mean, that of the last token, of the first."""

    MEAN = "mean"
    LAST = "last"
    CLS = "cls"


@dataclass(frozen=True, slots=True)
class EmbeddingParams:
    """Every parameter of an embedding as it is in effect.

    The pooled vector is cut to its first `dimensions` numbers (None keeps all), then, if
    `normalize`, made one of length 1. `base64` says how it is written, not what it is.
    """

    pooling: Pooling
    normalize: bool
    dimensions: int | None = None
    base64: bool = False
