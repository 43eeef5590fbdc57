"""What a Segment shows of its Attempt: that it lives, how it goes on, that it is over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CloseReason(StrEnum):
    """Why an Attempt is over: all is answered, or its Worker drained, could hold the Lease no
    longer (SQS: 12 hours), lost it, or was told that the batch has ended."""

    DONE = "done"
    DRAINED = "drained"
    RELEASED = "released"
    FENCED = "fenced"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Mark:
    """Part of each Segment that a Worker writes.

    An Attempt opens with its Segment 0, before it runs anything, and shows itself at least every
    half Lease. `written_at` is Unix time by the Worker's clock. `order` is higher than that of
    every Attempt that it found. `alone` is the Job that runs with no other beside it from now on.
    `opened_at` is when the Attempt opened, by the same clock; 0 in Segments of earlier versions.
    """

    written_at: float = 0.0
    order: int = 0
    closed: CloseReason | None = None
    alone: int | None = None
    opened_at: float = 0.0
