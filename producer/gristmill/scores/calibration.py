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


def expected_error(confidence: Any, correct: Any, weights: Any = None) -> float:
    """The expected calibration error over bins of equal width (Guo et al., 2017, equation 3).

    `confidence` and `correct` (0 or 1) are arrays with one entry a row; NaN does not count. It is
    never negative, so with few rows it is above 0 even for a model that is perfectly calibrated.
    """
    counts, sure, right = _sums(confidence, correct, weights)
    total = counts.sum()
    return float(abs(right - sure).sum() / total) if total else float("nan")


def reliability(confidence: Any, correct: Any) -> tuple[Bin, ...]:
    """What a reliability plot shows."""
    counts, sure, right = _sums(confidence, correct, None)
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


def _sums(confidence: Any, correct: Any, weights: Any) -> tuple[Any, Any, Any]:
    """By bin: rows, their confidences, and how many of them are right."""
    import numpy as np

    counts = ~(np.isnan(confidence) | np.isnan(correct))
    weights = counts.astype(np.float64) if weights is None else weights * counts
    sure, right = np.nan_to_num(confidence), np.nan_to_num(correct)
    # (0, 0.1], (0.1, 0.2] and so on; 0 is in the first.
    bins = np.clip(np.ceil(sure * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    return (
        np.bincount(bins, weights, NUM_BINS),
        np.bincount(bins, weights * sure, NUM_BINS),
        np.bincount(bins, weights * right, NUM_BINS),
    )
