"""Workers that load their model: which of them are waited for, and what they may take when ready.

Values and pure functions, made of what the Ledger knows of each Worker (fleet.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from gristmill.fleet import KnownWorker, ModelKey, WorkerState
from gristmill.types import ModelPin

#: No row has so many tokens.
NO_LIMIT = 2**53
#: One that loads for longer is not waited for.
_LOADS_FOR_S = 3600.0
#: Nor are those whose like were lost so often while they loaded, and never were ready.
_MAX_DIED = 3
#: Workers that were started together have all been heard of when the first one has for so long:
#: their first beat comes at once.
_SETTLES_S = 5.0

#: Model, window and device: Workers of one kind will take about the same.
_Kind = tuple[str, str, str, int, str]


@dataclass(frozen=True, slots=True)
class Loading:
    """Workers of a model that are not ready yet, and what they will take at most: as much as those
    of the same window and device that were heard of within a day, or else the window; 0 if none of
    them has told it, and NO_LIMIT while the first worker of the model was heard of just now.

    `num_died`: workers like them that were lost while they loaded.
    """

    model: ModelPin
    max_row_tokens: int
    num_died: int = 0


def has_loaded(worker: KnownWorker) -> bool:
    """Whether it has told what it takes."""
    return worker.beat.state is not WorkerState.LOADING and worker.card.max_row_tokens > 0


class LoadingWorkers:
    """`add` all that were heard of within a day, then ask."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._kinds: dict[ModelPin, set[_Kind]] = {}
        #: What those took that had come to be ready, and how many never did.
        self._reached: dict[_Kind, int] = {}
        self._num_died: Counter[_Kind] = Counter()
        #: When the first worker of a model was heard of.
        self._heard_at: dict[ModelKey, tuple[float, ModelPin]] = {}

    def add(self, worker: KnownWorker) -> None:
        model, card = worker.card.model, worker.card
        kind = (*model.key, card.window_tokens, card.device)
        first = (worker.first_heard_at, model)
        earliest = min(self._heard_at.get(model.key, first), first, key=lambda one: one[0])
        self._heard_at[model.key] = earliest
        if has_loaded(worker):
            self._reached[kind] = max(self._reached.get(kind, 0), card.max_row_tokens)
        elif worker.state_at(self._now) is WorkerState.LOST:
            self._num_died[kind] += 1
        elif worker.is_alive_at(self._now) and self._now - worker.first_heard_at <= _LOADS_FOR_S:
            self._kinds.setdefault(model, set()).add(kind)

    def find(self) -> Iterator[Loading]:
        """Of each model."""
        for model, kinds in self._kinds.items():
            hopeful = [k for k in kinds if k in self._reached or self._num_died[k] < _MAX_DIED]
            if hopeful:
                most = max(self._reached.get(kind, kind[3]) for kind in hopeful)
                yield Loading(model, most, sum(self._num_died[kind] for kind in hopeful))
        for first_at, model in self._heard_at.values():
            if self._now - first_at < _SETTLES_S:
                yield Loading(model, NO_LIMIT)
