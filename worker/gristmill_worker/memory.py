"""How much memory this machine, the container around this process, or its GPU still has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil

from gristmill.errors import OutOfMemory

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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a step failed because the machine or its device had no memory left."""
    if isinstance(error, MemoryError | OutOfMemory):
        return True
    # torch's own class, without importing torch; on a CPU it raises a plain RuntimeError.
    names = {cls.__name__ for cls in type(error).__mro__}
    return "OutOfMemoryError" in names or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def free_device_memory() -> None:
    """Let go of what torch keeps for later."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_bytes(device: str) -> int:
    """What the device has free just now: main memory, or that of a GPU ("cuda", "cuda:1")."""
    if device == "cpu":
        return free_memory_bytes()
    import torch

    return CudaMemory(torch.device(device).index or 0).free_bytes()


class DeviceMemory(Protocol):
    """The memory of one GPU, as torch and other processes have left it."""

    def free_bytes(self) -> int:
        """What this process could still take."""

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """What `work` takes at most, beside what was taken before."""


class CudaMemory:
    """See DeviceMemory. Asks the driver, which knows of other processes too."""

    def __init__(self, device_index: int) -> None:
        self._device = device_index

    def free_bytes(self) -> int:
        import torch

        torch.cuda.empty_cache()  # else what torch keeps for later looks taken
        free, _total = torch.cuda.mem_get_info(self._device)
        return free

    def peak_bytes(self, work: Callable[[], object]) -> int:
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_reserved(self._device)
        work()
        torch.cuda.synchronize(self._device)
        # Reserved, not allocated: gaps between tensors are taken as well.
        return torch.cuda.max_memory_reserved(self._device) - before
