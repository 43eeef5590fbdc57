"""Small tensors that the host makes, on their way to the device, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`. From pinned memory, so that the copy waits for its turn, not the host:
    `tensor.to(device)` would wait until all is done that the device has been told."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


#: Asks for copies of tensors on the host; what it returns waits until they are there.
Fetch = Callable[..., Callable[[], list[torch.Tensor]]]


def fetch(*tensors: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
    """See Fetch. They are as they come out of what the device has been told so far."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return lambda: list(tensors)
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[torch.Tensor]:
        copied.synchronize()
        return copies

    return wait
