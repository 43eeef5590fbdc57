"""How fast this machine prefills and decodes, measured from the steps that it makes anyway."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.fleet import PREFILL_LENGTHS, prefill_length
from gristmill_worker.engine.base import StepOutput

#: What was measured so many seconds of the same work ago counts half.
_HALF_LIFE_S = 60.0


@dataclass(slots=True)
class _Speed:
    """Sums in which the past fades."""

    num_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, num_tokens: float, seconds: float) -> None:
        fade = 0.5 ** (seconds / _HALF_LIFE_S)
        self.num_tokens = self.num_tokens * fade + num_tokens
        self.seconds = self.seconds * fade + seconds

    @property
    def tokens_per_s(self) -> float | None:
        """With four digits; None before anything was measured."""
        num_tokens, seconds = self.num_tokens, self.seconds
        return float(f"{num_tokens / seconds:.4g}") if num_tokens > 0 and seconds > 0 else None


class Speeds:
    """Belongs to the engine loop, which tells it of each step; any thread may read what it found.

    The time of a step is shared out by its tokens. What is spent on prompts is put down to the
    class of length of those whose prefill comes to its end, by their lengths: a long prompt takes
    several steps, and short ones share one.
    """

    def __init__(self) -> None:
        self._all = _Speed()
        self._decode = _Speed()
        self._prefill = {length: _Speed() for length in PREFILL_LENGTHS}
        #: Tokens of each prompt whose prefill has not come to its end.
        self._prefilling: dict[str, int] = {}
        #: Computed since a prefill last came to its end.
        self._open = _Speed()

    @property
    def tokens_per_s(self) -> float | None:
        """Of prompts and answers together; None before the first step."""
        return self._all.tokens_per_s

    @property
    def num_prefilling(self) -> int:
        """Sequences in the Engine whose prefill has not come to its end."""
        return len(self._prefilling)

    def is_prefilling(self, seq_id: str) -> bool:
        """Whether its prefill waits, or is under way."""
        return seq_id in self._prefilling

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Of all rows together; None until something was decoded."""
        return self._decode.tokens_per_s

    @property
    def prefill_tokens_per_s(self) -> tuple[tuple[int, float], ...]:
        """By class of length, those that were measured."""
        found = ((length, speed.tokens_per_s) for length, speed in self._prefill.items())
        return tuple((length, rate) for length, rate in found if rate is not None)

    def begin(self, seq_id: str, num_tokens: int) -> None:
        """The Engine has got a Sequence with so many tokens to prefill."""
        self._prefilling[seq_id] = num_tokens

    def forget(self, seq_id: str) -> None:
        """The Sequence is cancelled."""
        self._prefilling.pop(seq_id, None)

    def record(self, output: StepOutput, seconds: float) -> None:
        """A step has taken so long."""
        num_tokens = output.num_prefill_tokens + output.num_decode_tokens
        if num_tokens and seconds > 0:
            self._all.add(num_tokens, seconds)
            if output.num_decode_tokens:
                share = output.num_decode_tokens / num_tokens
                self._decode.add(output.num_decode_tokens, seconds * share)
            self._open.num_tokens += output.num_prefill_tokens
            self._open.seconds += seconds * output.num_prefill_tokens / num_tokens
        if self._prefilling:
            self._end_prefills(output)

    def _end_prefills(self, output: StepOutput) -> None:
        ended = [self._prefilling.pop(i) for i in output.advanced if i in self._prefilling]
        for finished in output.finished:  # what generates nothing never advances
            if finished.seq_id in self._prefilling:
                ended.append(self._prefilling.pop(finished.seq_id))
        all_tokens = sum(ended)
        if not all_tokens:
            return
        # Blocks of the prefix cache are not computed: less than all tokens of the prompts, so each
        # gets its share of what was.
        for num_tokens in ended:
            share = num_tokens / all_tokens
            self._prefill[prefill_length(num_tokens)].add(
                self._open.num_tokens * share, self._open.seconds * share
            )
        self._open = _Speed()
