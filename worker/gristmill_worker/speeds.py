"""How fast this machine prefills and decodes, measured from the steps that it makes anyway."""

from __future__ import annotations

from gristmill.fleet import StepTime
from gristmill.step_speeds import StepSpeeds
from gristmill_worker.engine.base import StepOutput


class Speeds(StepSpeeds):
    """Belongs to the engine loop, which tells it of each step; any thread may read what it found.

    Speeds that a card tells have four digits: a message has little room.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Tokens of each prompt whose prefill has not come to its end.
        self._prefilling: dict[str, int] = {}

    @property
    def num_prefilling(self) -> int:
        """Sequences in the Engine whose prefill has not come to its end."""
        return len(self._prefilling)

    def is_prefilling(self, seq_id: str) -> bool:
        """Whether its prefill waits, or is under way."""
        return seq_id in self._prefilling

    @property
    def decode_tokens_per_s(self) -> float | None:
        found = super().decode_tokens_per_s
        return None if found is None else _four_digits(found)

    @property
    def busy_tokens_per_s(self) -> float | None:
        found = super().busy_tokens_per_s
        return None if found is None else _four_digits(found)

    @property
    def step_time(self) -> StepTime | None:
        found = super().step_time
        if found is None:
            return None
        terms = (found.base_s, found.row_s, found.context_token_s)
        return StepTime(*map(_four_digits, terms))

    @property
    def prefill_tokens_per_s(self) -> tuple[tuple[int, float], ...]:
        return tuple((length, _four_digits(rate)) for length, rate in super().prefill_tokens_per_s)

    def begin(self, seq_id: str, num_tokens: int) -> None:
        """The Engine has got a Sequence with so many tokens to prefill."""
        self._prefilling[seq_id] = num_tokens

    def forget(self, seq_id: str) -> None:
        """The Sequence is cancelled."""
        self._prefilling.pop(seq_id, None)

    def record(self, output: StepOutput, seconds: float) -> None:
        """A step has taken so long."""
        self.add(
            seconds,
            num_prefill=output.num_prefill_tokens,
            num_decode=output.num_decode_tokens,
            num_context=output.kv_used_tokens,
            ended=self._take_ended(output) if self._prefilling else (),
        )

    def _take_ended(self, output: StepOutput) -> list[int]:
        """Lengths of the prompts whose prefill the step has brought to its end."""
        ended = [self._prefilling.pop(i) for i in output.advanced if i in self._prefilling]
        for finished in output.finished:  # what generates nothing never advances
            if finished.seq_id in self._prefilling:
                ended.append(self._prefilling.pop(finished.seq_id))
        return ended


def _four_digits(rate: float) -> float:
    return float(f"{rate:.4g}")
