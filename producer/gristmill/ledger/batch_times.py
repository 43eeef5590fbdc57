"""Where the time of a batch's rows went, added up as they are accepted: a few sums, a histogram.

A row's time runs from the moment in which its batch was in progress until it has its answer:

    in progress ──ledger──► sent ──queue──► Attempt opened ──worker──► first step ──prefill──►
    first token ──decode──► answer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gristmill.histogram import Histogram


@dataclass(frozen=True, slots=True)
class RowTime:
    """Seconds of one row in each stretch; those between are known to a second only."""

    ledger_s: float
    queue_s: float
    #: In the Worker before its first step; with what a step waits for others, and preemptions.
    worker_s: float
    prefill_s: float
    decode_s: float

    @property
    def wait_s(self) -> float:
        """Until it was its turn to be computed."""
        return self.ledger_s + self.queue_s + self.worker_s


@dataclass(slots=True)
class BatchTimes:
    """Of the rows that were computed, identical ones once, and whose stretches are known."""

    num_rows: int = 0
    ledger_s: float = 0.0
    queue_s: float = 0.0
    worker_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    wait: Histogram = field(default_factory=Histogram)

    def add(self, row: RowTime) -> None:
        self.num_rows += 1
        for stretch in STRETCHES:
            setattr(self, stretch, getattr(self, stretch) + getattr(row, stretch))
        self.wait.add(row.wait_s)

    def merge(self, other: BatchTimes) -> None:
        self.num_rows += other.num_rows
        for stretch in STRETCHES:
            setattr(self, stretch, getattr(self, stretch) + getattr(other, stretch))
        self.wait.merge(other.wait)

    def mean_s(self, stretch: str) -> float:
        """Of one of STRETCHES, for each row."""
        total_s: float = getattr(self, stretch)
        return total_s / self.num_rows if self.num_rows else 0.0

    def to_wire(self) -> dict[str, Any]:
        sums = {stretch: round(getattr(self, stretch), 3) for stretch in STRETCHES}
        return {"num_rows": self.num_rows, **sums, "wait": self.wait.to_wire()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any] | None) -> BatchTimes:
        """None is what a batch of an earlier version has."""
        if wire is None:
            return cls()
        return cls(**{**wire, "wait": Histogram.from_wire(wire["wait"])})


#: In their order.
STRETCHES = tuple(one.name for one in fields(RowTime))
