"""Counts of durations: bounded in size however many there are, and mergeable."""

from __future__ import annotations

import math
from collections.abc import Mapping


class Histogram:
    """Counts of durations in buckets that grow by a tenth, so a quantile is within 5 %.

    Unlike a list of values it has a bounded size and can be merged: rows into Segments, Segments
    into Batches.
    """

    _SMALLEST_S = 1e-5
    _LOG_GROWTH = math.log(1.1)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def add(self, seconds: float) -> None:
        ratio = max(seconds, self._SMALLEST_S) / self._SMALLEST_S
        bucket = int(math.log(ratio) / self._LOG_GROWTH)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: Histogram) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def quantile(self, q: float) -> float | None:
        """The q-quantile in seconds (0 <= q <= 1), or None when nothing was counted."""
        total = sum(self.counts.values())
        if not total:
            return None
        remaining = math.ceil(q * total) or 1
        for bucket in sorted(self.counts):
            remaining -= self.counts[bucket]
            if remaining <= 0:
                return self._SMALLEST_S * math.exp((bucket + 0.5) * self._LOG_GROWTH)
        raise AssertionError("the counts of a histogram add up to its total")

    def to_wire(self) -> dict[str, int]:
        return {str(bucket): count for bucket, count in sorted(self.counts.items())}

    @classmethod
    def from_wire(cls, wire: Mapping[str, int]) -> Histogram:
        return cls({int(bucket): count for bucket, count in wire.items()})
