"""How much one worker gets done in a second, for those who decide how many there shall be.

By what workers said of themselves while they worked, and not by what all accomplish together: so it
stays as it is when workers come, load, idle, drain and die.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from statistics import fmean

from gristmill.fleet import KnownWorker, WorkerState, lane_of
from gristmill.queues.base import BULK_LANE
from gristmill.types import ModelPin

#: They work, or will.
_COMING = (WorkerState.LOADING, WorkerState.READY)


class WorkerSpeeds:
    """By Lane and model, or LoRA adapter. For the Lane of a pool its workers count, and elsewhere
    all of the model.

    Of those that are alive if any of them has worked yet, or else of those that were heard of in
    the last day; `assumed` tokens per second while there are none.
    """

    def __init__(
        self,
        known: Iterable[KnownWorker],
        now: float,
        *,
        assumed: float,
        unfit: Collection[ModelPin] = (),
    ) -> None:
        """`unfit` ones of what workers run count for nothing."""
        self._assumed = assumed
        self._alive: dict[tuple[str, str], list[float]] = {}
        self._gone: dict[tuple[str, str], list[float]] = {}
        self._num_alive: dict[tuple[str, str], int] = {}
        for worker in known:
            card = worker.card
            is_alive = worker.is_alive_at(now)
            # While it loads, nobody knows what it can.
            own = [lane_of(card)] if card.max_row_tokens > 0 else []
            names = [pin.name for pin in card.pins if pin not in unfit]
            for of in itertools.product((BULK_LANE, *own), names):
                if worker.state_at(now) in _COMING:
                    self._num_alive[of] = self._num_alive.get(of, 0) + 1
                if card.busy_tokens_per_s:
                    found = self._alive if is_alive else self._gone
                    found.setdefault(of, []).append(card.busy_tokens_per_s)

    def of_one(self, lane: str, model: str) -> float:
        """Tokens per second of a worker on the mean, prompts and answers; never 0."""
        for of in ((lane, model), (BULK_LANE, model)):
            for found in (self._alive, self._gone):
                if of in found:
                    return fmean(found[of])
        return self._assumed

    def num_alive(self, lane: str, model: str) -> int:
        """Those that load, or take work."""
        return self._num_alive.get((lane, model), 0)
