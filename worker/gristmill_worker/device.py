"""Which device this machine computes on. Looks for a driver first, since torch loads slowly."""

from __future__ import annotations

from pathlib import Path

#: What a driver for NVIDIA (also under WSL) or AMD leaves in the file system.
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))


def find_device() -> str:
    """ "cuda" where torch can use a GPU, else "cpu"."""
    if not any(path.exists() for path in _DRIVER_FILES):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device(device: str) -> str:
    """A device in words, for the line that says what the Engine has."""
    import torch

    if device == "cpu":
        return f"{torch.get_num_threads()} threads"
    return torch.cuda.get_device_name(torch.device(device))


def device_name(device: str) -> str:
    """ "cpu", or "cuda" and what the GPU is called."""
    return device if device == "cpu" else f"cuda {describe_device(device)}"
