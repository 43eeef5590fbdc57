"""How weights are laid out for a processor, so that a product is fast and its bits are a row's own.

torch's own linear layer picks another way of multiplying for another number of rows, so a row's
last bits change with its batch. Each packing here gives a row the same bits in any company
(tests/models/test_packing.py holds them to that), but another packing may give it others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from gristmill_worker.models.product import CompiledPacking


class PackedMatrix(Protocol):
    """A weight [out, in] in a layout of its own."""

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x @ weight.T + bias: [..., in] to [..., out], with a bias [out]."""

    def plain(self) -> torch.Tensor:
        """The weight as it was; a copy."""


class Packing(Protocol):
    """A way to lay weights out."""

    @property
    def name(self) -> str:
        """In a report: linear layers packed for …"""

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        """A copy of a weight [out, in] that may have any strides."""


def choose_packing(
    dtype: torch.dtype, device: torch.device, cache_dir: Path | None
) -> Packing | None:
    """The fastest that this machine has; None means that a model keeps its own linear layers.

    Our kernel is built in `cache_dir`, where one is given. The choice is a rule and never measured:
    a run that is resumed must go on with the same bits.
    """
    if dtype is not torch.float32 or device.type != "cpu":
        return None
    compiled = None if cache_dir is None else CompiledPacking.load(cache_dir)
    if compiled is not None:
        return compiled
    return OneDnnPacking() if OneDnnPacking.is_available() else None


class OneDnnPacking:
    """oneDNN's prepacked linear layer, which torch has under private names."""

    name = "oneDNN"

    @staticmethod
    def is_available() -> bool:
        return (
            bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
            and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        )

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        return OneDnnMatrix(weight)


class OneDnnMatrix:
    """See PackedMatrix."""

    #: Fewest and most rows in one product: within these a row's bits do not change. For one row
    #: oneDNN takes another way, which adds up long rows in another order, so it is multiplied
    #: twice over; more than MAX_ROWS are multiplied in slices.
    MIN_ROWS, MAX_ROWS = 2, 256
    #: The number of rows that the weights are laid out for.
    _EXPECTED_ROWS = 64

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(
            weight.contiguous(), self._EXPECTED_ROWS
        )

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        slices = [self._multiply_slice(part, bias) for part in torch.split(rows, self.MAX_ROWS)]
        product = slices[0] if len(slices) == 1 else torch.cat(slices)
        return product.view(*x.shape[:-1], product.shape[-1])

    def _multiply_slice(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        padded = rows.repeat(self.MIN_ROWS, 1) if len(rows) < self.MIN_ROWS else rows
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            padded, self._weight, bias, "none", [], ""
        )
        return product[: len(rows)]

    def plain(self) -> torch.Tensor:
        plain: torch.Tensor = self._weight.to_dense()
        return plain
