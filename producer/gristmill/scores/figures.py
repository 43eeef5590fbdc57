"""Figures over all rows of a scored data set, each with a bootstrap confidence interval.

Rows are added one by one and kept as numbers: eight bytes for each column that a figure needs.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.scores.calibration import Bin, Calibration
from gristmill.scores.confusion import Confusion, Pairs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Share of resamples that an interval leaves out on either side.
_TAIL = 0.025


def same(mean: float) -> float:
    return mean


def perplexity(mean_logprob: float) -> float:
    return math.exp(-mean_logprob) if mean_logprob > -700 else math.inf


def bits(mean_logprob: float) -> float:
    return -mean_logprob / math.log(2)


@dataclass(frozen=True, slots=True)
class Ratio:
    """`of(sum of one column / sum of another)`; `per` 1 is the number of rows.

    A row that has nothing (null) in one of them does not count.
    """

    column: str
    per: str | int = 1
    of: Callable[[float], float] = same


@dataclass(frozen=True, slots=True)
class Classes:
    """Rows whose answer is right or wrong. `labels` where they are the same in all rows."""

    labels: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the report. `low` to `high` holds it in 95 % of resamples."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """All that is said of the rows together."""

    num_rows: int
    figures: tuple[Figure, ...]
    reliability: tuple[Bin, ...] = ()
    confusion: Confusion | None = None


class Figures:
    """`ratios` by the name of their figure. `classes` adds calibration, and a confusion table."""

    def __init__(self, ratios: Mapping[str, Ratio], classes: Classes | None = None) -> None:
        self._ratios = ratios
        self._classes = classes
        used = [name for ratio in ratios.values() for name in (ratio.column, ratio.per)]
        if classes is not None:
            used += ["confidence", "is_correct", "prediction_idx", "gold_idx"]
        self._columns = {name: array("d") for name in used if isinstance(name, str)}
        self._num_rows = 0

    def add(self, values: Mapping[str, Any]) -> None:
        """One row's values by column; what is null or not there is NaN."""
        for name, column in self._columns.items():
            value = values.get(name)
            column.append(math.nan if value is None else float(value))
        self._num_rows += 1

    def findings(self, *, num_resamples: int = 1000, seed: int = 0) -> Findings:
        """The same rows, number of resamples and seed give the same intervals. Needs numpy."""
        statistics = self._statistics()
        values = {name: of(None) for name, of in statistics.items()}
        spread = self._resampled(statistics, num_resamples, seed) if self._num_rows > 1 else {}
        figures = tuple(
            Figure(name, _finite(value), *_interval(spread.get(name, ())))
            for name, value in values.items()
        )
        return Findings(self._num_rows, figures, self._reliability(), self._confusion())

    def _statistics(self) -> dict[str, Callable[[Floats | None], float]]:
        """Each figure as a function of the rows' weights; None weighs each row once."""
        import numpy as np

        arrays = {name: np.array(column) for name, column in self._columns.items()}
        found = {name: _ratio(ratio, arrays) for name, ratio in self._ratios.items()}
        if self._classes is not None and self._is_graded():
            found["calibration error (ECE)"] = self._calibration().error
            if self._classes.labels is not None:
                found["F1, mean over answers"] = self._pairs(self._classes.labels).macro_f1
        return found

    def _resampled(
        self,
        statistics: Mapping[str, Callable[[Floats | None], float]],
        num_resamples: int,
        seed: int,
    ) -> dict[str, list[float]]:
        """Percentile bootstrap (Efron, 1979): as many rows, drawn with replacement."""
        import numpy as np

        chance = np.random.default_rng(seed)
        spread: dict[str, list[float]] = {name: [] for name in statistics}
        for _ in range(num_resamples):
            drawn = chance.integers(0, self._num_rows, self._num_rows)
            weights = np.bincount(drawn, minlength=self._num_rows).astype(np.float64)
            for name, statistic in statistics.items():
                spread[name].append(statistic(weights))
        return spread

    def _is_graded(self) -> bool:
        return any(value == value for value in self._columns.get("is_correct", ()))

    def _reliability(self) -> tuple[Bin, ...]:
        if self._classes is None or not self._is_graded():
            return ()
        return self._calibration().bins()

    def _confusion(self) -> Confusion | None:
        if self._classes is None or self._classes.labels is None or not self._is_graded():
            return None
        return self._pairs(self._classes.labels).confusion()

    def _calibration(self) -> Calibration:
        import numpy as np

        columns = (self._columns[name] for name in ("confidence", "is_correct"))
        return Calibration(*map(np.array, columns))

    def _pairs(self, labels: tuple[str, ...]) -> Pairs:
        import numpy as np

        gold, predicted = (
            np.array(self._columns[name]).astype(np.int64)
            for name in ("gold_idx", "prediction_idx")
        )
        return Pairs(gold, predicted, labels)


def _ratio(ratio: Ratio, arrays: Mapping[str, Floats]) -> Callable[[Floats | None], float]:
    import numpy as np

    above = arrays[ratio.column]
    below = arrays[ratio.per] if isinstance(ratio.per, str) else np.full(len(above), ratio.per)
    counts = ~(np.isnan(above) | np.isnan(below))
    both = (np.where(counts, above, 0.0), np.where(counts, below, 0.0))

    def value(weights: Floats | None) -> float:
        # Not `weights @ above`: that runs in threads, which cost more than they bring here.
        top, bottom = (float((one if weights is None else weights * one).sum()) for one in both)
        return ratio.of(top / bottom) if bottom else math.nan

    return value


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    found = [value for value in values if value == value]
    if not found:
        return None, None
    import numpy as np

    low, high = np.quantile(found, [_TAIL, 1 - _TAIL])
    return _finite(float(low)), _finite(float(high))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
