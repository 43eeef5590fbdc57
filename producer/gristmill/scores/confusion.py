"""Which answers were taken for which, where all rows have the same ones to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Confusion:
    """`counts[gold][predicted]` rows. Means are None where there is nothing to divide by."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    precision: tuple[float | None, ...]
    recall: tuple[float | None, ...]
    f1: tuple[float | None, ...]


class Pairs:
    """Of each row the right answer and the predicted one: arrays of indices."""

    def __init__(self, gold: Any, predicted: Any, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._cells = gold * len(labels) + predicted

    def confusion(self) -> Confusion:
        table = self._table(None)
        hits, named, there = table.diagonal(), table.sum(axis=0), table.sum(axis=1)
        return Confusion(
            self._labels,
            tuple(tuple(int(count) for count in row) for row in table),
            tuple(_share(a, b) for a, b in zip(hits, named, strict=True)),
            tuple(_share(a, b) for a, b in zip(hits, there, strict=True)),
            tuple(_share(2 * a, b + c) for a, b, c in zip(hits, named, there, strict=True)),
        )

    def macro_f1(self, weights: Any = None) -> float:
        """The mean F1 of all answers that occur, as gold or as prediction."""
        table = self._table(weights)
        both = table.sum(axis=0) + table.sum(axis=1)
        occurs = both > 0
        if not occurs.any():
            return float("nan")
        return float((2 * table.diagonal()[occurs] / both[occurs]).mean())

    def _table(self, weights: Any) -> Any:
        import numpy as np

        size = len(self._labels)
        return np.bincount(self._cells, weights, size**2).reshape(size, size)


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
