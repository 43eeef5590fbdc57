"""Whether a model is as often right as it is sure: bins of confidence, and their expected error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NUM_BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows whose confidence lies in (low, high]; means are None where there is no row."""

    low: float
    high: float
    num_rows: int
    confidence: float | None
    accuracy: float | None


class Calibration:
    """`confidence` and `correct` (0 or 1) are arrays with one entry a row; NaN does not count."""

    def __init__(self, confidence: Any, correct: Any) -> None:
        import numpy as np

        counts = ~(np.isnan(confidence) | np.isnan(correct))
        sure = np.where(counts, confidence, 0.0)
        # (0, 0.1], (0.1, 0.2] and so on; 0 is in the first.
        bins = np.ceil(sure * NUM_BINS).astype(np.int64) - 1
        self._bins = np.clip(bins, 0, NUM_BINS - 1)
        #: What is summed by bin: rows, their confidences, and how many of them are right.
        self._summed = (counts.astype(np.float64), sure, np.where(counts, correct, 0.0))

    def error(self, weights: Any = None) -> float:
        """The expected calibration error over bins of equal width (Guo et al., 2017, equation 3).

        It is never negative, so with few rows it is above 0 even for a model that is perfectly
        calibrated.
        """
        counts, sure, right = self._sums(weights)
        total = counts.sum()
        return float(abs(right - sure).sum() / total) if total else float("nan")

    def bins(self) -> tuple[Bin, ...]:
        """What a reliability plot shows."""
        counts, sure, right = self._sums(None)
        return tuple(
            Bin(
                i / NUM_BINS,
                (i + 1) / NUM_BINS,
                int(counts[i]),
                float(sure[i] / counts[i]) if counts[i] else None,
                float(right[i] / counts[i]) if counts[i] else None,
            )
            for i in range(NUM_BINS)
        )

    def _sums(self, weights: Any) -> tuple[Any, ...]:
        import numpy as np

        return tuple(
            np.bincount(self._bins, values if weights is None else weights * values, NUM_BINS)
            for values in self._summed
        )
