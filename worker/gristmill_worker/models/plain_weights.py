"""Gives plain weights back to the system while a model is packed, so that few are held twice.

Weights of the wanted dtype are views of mapped files; others were converted into memory of their
own. Nothing is taken from anybody: pages of a file come back when they are read again, and memory
goes when nobody refers to it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from gristmill_worker.models.large_pages import ReusedPages

#: The C library is asked for what it keeps each time that so much was packed.
_TRIMMED_BYTES = 64 << 20


class PlainWeights:
    """What a model that is about to be packed has in memory."""

    def __init__(self) -> None:
        self._files = _mapped_weights()
        self._untrimmed_bytes = 0
        self._joined = ReusedPages()

    def join(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:  # float32
        """Weights [out, in] of the same input below each other, until the next ones are joined."""
        if len(weights) == 1:
            return weights[0]
        num_out = sum(len(weight) for weight in weights)
        return torch.cat(list(weights), out=self._joined.empty(num_out, weights[0].shape[1]))

    def let_go(self, weights: Iterable[torch.Tensor]) -> None:
        """These have been packed."""
        for weight in weights:
            begin, num_bytes = weight.data_ptr(), weight.nbytes
            if any(first <= begin and begin + num_bytes <= end for first, end in self._files):
                _forget_pages(begin, begin + num_bytes)
            self._untrimmed_bytes += num_bytes
        if self._untrimmed_bytes >= _TRIMMED_BYTES:
            self._untrimmed_bytes = 0
            trim_memory()


def let_go_of_files(model: torch.nn.Module) -> None:
    """Copy what is left of the weights, so that the mapped files, which hold all, can go."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def trim_memory() -> None:
    """Have the C library give back what it keeps of freed memory (glibc; others keep little)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _mapped_weights() -> list[tuple[int, int]]:
    """First and last address of each mapped file of weights; none where there is no /proc."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(".safetensors")]
    return [(int(first, 16), int(end, 16)) for first, end in ranges]


def _forget_pages(begin: int, end: int) -> None:
    """Unmap the pages that lie within these addresses of a mapped file, until they are read."""
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    num_bytes = end // mmap.PAGESIZE * mmap.PAGESIZE - first
    if num_bytes > 0:
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        advise(first, num_bytes, mmap.MADV_DONTNEED)
