"""How fast a machine prefills and decodes, by the steps that it makes: real ones, or simulated."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gristmill.fleet import PREFILL_LENGTHS, StepTime, prefill_length
from gristmill.step_fit import StepFit

#: What was measured so many seconds of the same work ago counts half.
_HALF_LIFE_S = 60.0
#: The same of what fleets are sized by, which shall not follow each batch.
_LONG_HALF_LIFE_S = 600.0

#: How fast what is known of the prefix cache follows the prompts that come to their end, and the
#: most that one of them says.
_GAIN_RATE, _MAX_GAIN = 0.05, 100.0


@dataclass(slots=True)
class _Speed:
    """Sums in which the past fades."""

    num_tokens: float = 0.0
    seconds: float = 0.0
    half_life_s: float = _HALF_LIFE_S

    def add(self, num_tokens: float, seconds: float) -> None:
        fade = 0.5 ** (seconds / self.half_life_s)
        self.num_tokens = self.num_tokens * fade + num_tokens
        self.seconds = self.seconds * fade + seconds

    @property
    def tokens_per_s(self) -> float | None:
        """None before anything was measured."""
        is_measured = self.num_tokens > 0 and self.seconds > 0
        return self.num_tokens / self.seconds if is_measured else None


class StepSpeeds:
    """The time of a step is shared out between prompts and rows that decode, by what these take.
    What is spent on prompts is put down to the class of length of those whose prefill comes to its
    end, by their lengths: a long prompt takes several steps, and short ones share one.
    """

    def __init__(self) -> None:
        self._all = _Speed()
        self._decode = _Speed()
        self._fit = StepFit()
        self._prefill = {length: _Speed() for length in PREFILL_LENGTHS}
        #: Computed since a prefill last came to its end.
        self._open = _Speed()
        self._busy = _Speed(half_life_s=_LONG_HALF_LIFE_S)
        #: What the prefix cache makes of a token that is computed of prompts.
        self._gain = 1.0

    @property
    def busy_tokens_per_s(self) -> float | None:
        """Of prompts and answers that are done, computed or out of the prefix cache, over a longer
        time; None before the first step."""
        return self._busy.tokens_per_s

    @property
    def tokens_per_s(self) -> float | None:
        """Of prompts and answers together; None before the first step."""
        return self._all.tokens_per_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Of all rows together; None until something was decoded."""
        return self._decode.tokens_per_s

    @property
    def step_time(self) -> StepTime | None:
        """What a step takes by its rows and their context; None until something was decoded."""
        return self._fit.step_time

    @property
    def prefill_tokens_per_s(self) -> tuple[tuple[int, float], ...]:
        """By class of length, those that were measured."""
        found = ((length, speed.tokens_per_s) for length, speed in self._prefill.items())
        return tuple((length, rate) for length, rate in found if rate is not None)

    def add(
        self,
        step_s: float,
        *,
        num_prefill: float,
        num_decode: int,
        num_context: float,
        ended: Collection[int],
        num_steps: int = 1,
    ) -> None:
        """`num_steps` equal steps took `step_s` each. In each of them so many tokens of prompts and
        of answers were computed, with so many in the KV cache; `ended` are the lengths of prompts
        that are done with that."""
        num_tokens = num_prefill + num_decode
        if num_tokens and step_s > 0:
            seconds = num_steps * step_s
            self._all.add(num_steps * num_tokens, seconds)
            self._busy.add(num_steps * (num_prefill * self._gain + num_decode), seconds)
            terms = {"num_rows": num_decode, "num_context": num_context, "num_prefill": num_prefill}
            self._fit.add(step_s, num_steps=num_steps, **terms)
            share = self._fit.prefill_share(**terms)
            if num_decode:
                self._decode.add(num_steps * num_decode, seconds * (1 - share))
            self._open.num_tokens += num_steps * num_prefill
            self._open.seconds += seconds * share
        all_tokens = sum(ended)
        if not all_tokens:
            return
        if self._open.num_tokens > 0:
            newest = min(max(all_tokens / self._open.num_tokens, 1.0), _MAX_GAIN)
            self._gain += _GAIN_RATE * (newest - self._gain)
        # Blocks of the prefix cache are not computed: less than all tokens of the prompts, so each
        # gets its share of what was.
        for length in ended:
            share = length / all_tokens
            self._prefill[prefill_length(length)].add(
                self._open.num_tokens * share, self._open.seconds * share
            )
        self._open = _Speed()
