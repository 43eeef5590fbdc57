"""The line that an engine under test prints for each workload. Standard library only."""

from __future__ import annotations

import json
import resource


def report(workload: str, seconds: float, answers: dict[str, list[int]]) -> None:
    """`seconds` leave out loading; `answers` are the generated ids of each request."""
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    line = {"workload": workload, "seconds": seconds, "peak_mb": peak_mb, "answers": answers}
    print("RESULT", json.dumps(line), flush=True)
