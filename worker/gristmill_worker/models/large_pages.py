"""Memory for weights and logits in large pages, where the system gives them.

A product reads all of a weight, and of pages of 4 KiB a processor has to look up a new address
every 64 cache lines: with few rows, when reading is all it does, that is a third of the time.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Sequence
from math import prod

import torch

_LARGE_PAGE = 2 << 20
_LINE = 64
#: Tensors below this are left to the C library, which finds room for them among others.
_LEAST_REUSED = 1 << 20


class LargePages:
    """Hands out pieces of large chunks. A chunk is freed when no tensor lies in it any more.

    What of a chunk was never handed out is never touched, and so takes no memory, but for the rest
    of the page that the last piece ends in. Chunks are large, so that these are few.
    """

    def __init__(self, *, chunk_bytes: int = 256 << 20) -> None:
        self._chunk_bytes = chunk_bytes
        self._chunk: mmap.mmap | None = None
        self._used_bytes = 0

    def empty(self, shape: Sequence[int]) -> torch.Tensor:  # float32
        """As torch.empty, at the beginning of a cache line."""
        num_bytes = prod(shape) * torch.float32.itemsize
        if not num_bytes or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(*shape)
        if self._chunk is None or self._used_bytes + num_bytes > len(self._chunk):
            self._chunk = _map(max(num_bytes, self._chunk_bytes))
            self._used_bytes = 0
        piece = torch.frombuffer(
            self._chunk, dtype=torch.float32, count=prod(shape), offset=self._used_bytes
        )
        self._used_bytes += -(-num_bytes // _LINE) * _LINE
        return piece.view(*shape)


class ReusedPages:
    """Memory for one large tensor at a time, the same again and again: the logits of each step.

    Their number changes from step to step, and what a C library keeps for such sizes, with small
    things between them, comes to several times the largest.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._num_references = 0

    def empty(self, *shape: int) -> torch.Tensor:  # float32
        """As torch.empty, and made by it while the tensor before is still referred to."""
        num_bytes = prod(shape) * torch.float32.itemsize
        if num_bytes < _LEAST_REUSED or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(*shape)
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = _map(num_bytes)
            self._num_references = sys.getrefcount(self._memory)
        elif sys.getrefcount(self._memory) > self._num_references:  # tensors hold one
            return torch.empty(*shape)
        return torch.frombuffer(self._memory, dtype=torch.float32, count=prod(shape)).view(*shape)


def _map(num_bytes: int) -> mmap.mmap:
    size = -(-num_bytes // _LARGE_PAGE) * _LARGE_PAGE
    # Private, since shared memory gets large pages by another setting, mostly off.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel that was built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
