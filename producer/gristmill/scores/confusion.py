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

    @classmethod
    def of(cls, gold: Any, predicted: Any, labels: tuple[str, ...]) -> Confusion:
        """From arrays of indices, one entry a row."""
        table = _table(gold, predicted, len(labels), None)
        hits, named, there = table.diagonal(), table.sum(axis=0), table.sum(axis=1)
        return cls(
            labels,
            tuple(tuple(int(count) for count in row) for row in table),
            tuple(_share(a, b) for a, b in zip(hits, named, strict=True)),
            tuple(_share(a, b) for a, b in zip(hits, there, strict=True)),
            tuple(_share(2 * a, b + c) for a, b, c in zip(hits, named, there, strict=True)),
        )


def macro_f1(gold: Any, predicted: Any, num_labels: int, weights: Any) -> float:
    """The mean F1 of all answers that occur, as gold or as prediction."""
    table = _table(gold, predicted, num_labels, weights)
    both = table.sum(axis=0) + table.sum(axis=1)
    occurs = both > 0
    if not occurs.any():
        return float("nan")
    return float((2 * table.diagonal()[occurs] / both[occurs]).mean())


def _table(gold: Any, predicted: Any, num_labels: int, weights: Any) -> Any:
    import numpy as np

    counts = np.bincount(gold * num_labels + predicted, weights, num_labels**2)
    return counts.reshape(num_labels, num_labels)


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
