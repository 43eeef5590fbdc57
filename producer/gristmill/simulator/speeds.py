"""What a simulated Worker measures of itself and tells on its card: as the real one does it.

The rules are those of gristmill_worker/speeds.py, which the control side cannot import: the time of
a step is shared out by its tokens, that of prompts goes to the length class of those that end.
"""

from __future__ import annotations

from gristmill.fleet import PREFILL_LENGTHS, prefill_length

#: What was measured so many seconds of the same work ago counts half.
_HALF_LIFE_S = 60.0


class _Speed:
    """Sums in which the past fades."""

    __slots__ = ("num_tokens", "seconds")

    def __init__(self) -> None:
        self.num_tokens = 0.0
        self.seconds = 0.0

    def add(self, num_tokens: float, seconds: float) -> None:
        fade = 0.5 ** (seconds / _HALF_LIFE_S)
        self.num_tokens = self.num_tokens * fade + num_tokens
        self.seconds = self.seconds * fade + seconds

    @property
    def tokens_per_s(self) -> float | None:
        return self.num_tokens / self.seconds if self.seconds > 0 else None


class Speeds:
    def __init__(self) -> None:
        self._all = _Speed()
        self._decode = _Speed()
        self._prefill = {length: _Speed() for length in PREFILL_LENGTHS}
        #: Computed since a prefill last came to its end.
        self._open_tokens = self._open_s = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Of prompts and answers together."""
        return self._all.tokens_per_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        return self._decode.tokens_per_s

    @property
    def prefill_tokens_per_s(self) -> tuple[tuple[int, float], ...]:
        found = ((length, speed.tokens_per_s) for length, speed in self._prefill.items())
        return tuple((length, rate) for length, rate in found if rate is not None)

    def record(
        self, seconds: float, *, num_decode: int, num_prefill: int, ended: list[int]
    ) -> None:
        """Steps of so many tokens took so long; `ended` are the lengths of prompts that are done
        with that."""
        num_tokens = num_decode + num_prefill
        self._all.add(num_tokens, seconds)
        if num_decode:
            self._decode.add(num_decode, seconds * num_decode / num_tokens)
        if num_prefill:
            self._open_tokens += num_prefill
            self._open_s += seconds * num_prefill / num_tokens
        if not ended:
            return
        all_tokens = sum(ended)
        for length in ended:
            share = length / all_tokens
            speed = self._prefill[prefill_length(length)]
            speed.add(self._open_tokens * share, self._open_s * share)
        self._open_tokens = self._open_s = 0.0
