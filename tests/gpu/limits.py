"""The limits of a device as torch reaches them: what our figures are a share of."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def seconds(work: Callable[[], object], *, rounds: int = 10) -> float:
    """The median over some rounds, after two that warm up, by the device's own clock."""
    for _ in range(2):
        work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


def bytes_per_s(device: torch.device) -> float:
    """Reading and writing a gigabyte, which no cache holds."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def flops(device: torch.device, dtype: torch.dtype) -> float:
    """A large square product, the best case of the matrix units."""
    size = 8192
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: one @ other)


def show(name: str, achieved: float, limit: float, unit: str) -> None:
    scale = {"GB/s": 1e9, "TFLOP/s": 1e12}[unit]
    print(
        f"\n{name}: {achieved / scale:,.0f} {unit}, "
        f"{achieved / limit:.0%} of {limit / scale:,.0f} {unit}",
        end="",
    )
