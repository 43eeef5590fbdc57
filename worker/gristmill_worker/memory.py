"""How much memory this machine, or the container around this process, still has."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Memory that can be taken without swapping, and without passing the container's limit."""
    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit_bytes = int((cgroup / limit).read_text())
            used_bytes = int((cgroup / used).read_text())
        except (OSError, ValueError):  # no such version of cgroups, or no limit ("max")
            continue
        free = min(free, max(limit_bytes - used_bytes, 0))
    return free
