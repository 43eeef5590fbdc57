"""How far a run is, wherever it runs: what is shown while one waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["reading", "loading", "running", "writing"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Rows are those of the whole batch, tokens those of this start."""

    phase: Phase
    total: int
    completed: int
    failed: int
    generated_tokens: int
    tokens_per_s: float
    eta_s: float | None
    bytes_read: int
    bytes_total: int
    #: What the worker computes with; empty before its model is loaded.
    equipment: str = ""
