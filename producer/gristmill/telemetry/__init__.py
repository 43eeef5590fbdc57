"""What a process tells of itself while it works: metrics and traces. To nobody, unless asked.

The seam: control side, API and Worker are given a Telemetry and record into it. Only the standard
library is imported here; `process/telemetry.py` makes one that tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.telemetry.tally import NO_METRICS, Metrics, Tally
from gristmill.telemetry.traces import NO_TRACER, Span, Tracer

__all__ = [
    "NO_METRICS",
    "NO_TELEMETRY",
    "NO_TRACER",
    "Metrics",
    "Span",
    "Tally",
    "Telemetry",
    "Tracer",
]


@dataclass(frozen=True, slots=True)
class Telemetry:
    metrics: Metrics = NO_METRICS
    tracer: Tracer = NO_TRACER


NO_TELEMETRY = Telemetry()
