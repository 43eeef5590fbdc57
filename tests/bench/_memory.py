"""The most memory that this process has held. Imported by measurements; none itself."""

from __future__ import annotations

import re
from pathlib import Path


def peak_mib() -> float:
    """Since the process began (on Linux), or since `forget_peak`.

    Not what getrusage tells: that begins with the peak of the process that started this one.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
