"""What all workers accomplish together: sums in which the past fades, as ledger/paces.py has it."""

from __future__ import annotations

#: As there; it cannot be imported without SQLAlchemy.
_HALF_LIFE_S, _MAX_GAP_S = 120.0, 45.0


class Pace:
    def __init__(self) -> None:
        self._num_tokens = self._busy_s = 0.0
        self._heard_at: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        return self._num_tokens / self._busy_s if self._busy_s >= 1 else None

    def record(self, num_tokens: float, *, now: float) -> None:
        """So much was finished since the last call."""
        if self._heard_at is not None and now - self._heard_at <= _MAX_GAP_S:
            busy_s = now - self._heard_at
            fade = 0.5 ** (busy_s / _HALF_LIFE_S)
            self._num_tokens = self._num_tokens * fade + num_tokens
            self._busy_s = self._busy_s * fade + busy_s
        self._heard_at = now
