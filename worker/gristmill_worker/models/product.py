"""Products with weights by product.c: near the processor's limit from a few rows on, and the same
bits for a row at any number of rows and threads."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from gristmill_worker.models.large_pages import LargePages, ReusedPages
from gristmill_worker.native import Kernel, load_native

_SOURCE = Path(__file__).with_name("product.c")


class CompiledPacking:
    """See Packing. For float32 on the CPU."""

    name = "our own kernel"

    def __init__(self, kernel: ctypes.CDLL) -> None:
        self.multiply = Kernel(kernel, "gristmill_multiply", "5P6q")
        self.panel_width: int = kernel.gristmill_panel()
        self.memory, self.products = LargePages(), ReusedPages()

    @classmethod
    def load(cls, cache_dir: Path) -> CompiledPacking | None:
        """Built if need be, and kept in `cache_dir`; None where no C compiler can build it."""
        kernel = load_native(_SOURCE, cache_dir)
        return None if kernel is None else cls(kernel)

    def pack(self, weight: torch.Tensor) -> CompiledMatrix:  # [out, in]
        return CompiledMatrix(self, weight)


class CompiledMatrix:
    """See PackedMatrix. Holds panels [num_panels, in, panel_width]; the last is filled with 0."""

    def __init__(self, packing: CompiledPacking, weight: torch.Tensor) -> None:
        assert weight.dtype is torch.float32, f"a weight of {weight.dtype}: see choose_packing()"
        self._packing = packing
        self._out_features, self._in_features = weight.shape
        width = packing.panel_width
        missing = -self._out_features % width
        padded = torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight
        panels = padded.reshape(-1, width, self._in_features).transpose(1, 2)
        self._panels = packing.memory.empty(panels.shape).copy_(panels)

    def multiply(
        self,
        x: torch.Tensor,  # [..., in]
        bias: torch.Tensor | None,  # [out]
    ) -> torch.Tensor:  # [..., out]
        rows = x.reshape(-1, x.shape[-1])
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        num_rows, depth = rows.shape
        assert rows.dtype is torch.float32, f"rows of {rows.dtype} for a weight of float32"
        assert depth == self._in_features, f"rows of {depth} for a weight of {self._in_features}"
        if bias is not None:
            bias = bias.expand(self._out_features).contiguous()
        product = self._packing.products.empty(num_rows, self._out_features)
        self._packing.multiply(
            rows.data_ptr(),
            self._panels.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0,  # no residual
            product.data_ptr(),
            num_rows,
            self._out_features,
            depth,
            rows.stride(0),
            self._out_features,
            0,
        )
        return product.view(*x.shape[:-1], self._out_features)

    def plain(self) -> torch.Tensor:  # [out, in]
        columns = self._panels.transpose(1, 2).reshape(-1, self._in_features)
        return columns[: self._out_features]
