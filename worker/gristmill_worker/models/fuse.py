"""Fewer passes over memory in what a transformers model does between its products.

Parts are found by what they do, never by the model's name, and each is replaced only where it is
seen to give the same numbers within rounding. That takes trial runs of the model: one before its
linear layers are packed, and the others after that, when they are several times faster.
"""

from __future__ import annotations

from typing import Any

from gristmill_worker.models.gated import fuse_activations
from gristmill_worker.models.norm import fuse_norms
from gristmill_worker.models.packed_weight import pack_model
from gristmill_worker.models.packing import Packing
from gristmill_worker.models.probe import CallRecorder, run_three_tokens
from gristmill_worker.models.rotary import Rotated, fuse_rotary
from gristmill_worker.models.row_kernels import RowKernels
from gristmill_worker.models.watch import called_with_one_tensor


def fuse_and_pack(model: Any, packing: Packing, kernels: RowKernels | None) -> None:
    """Make a transformers model in float32 fast on the CPU; without kernels it is only packed."""
    if kernels is not None:
        fuse_modules(model, kernels)
    pack_model(model, packing, lambda: run_three_tokens(model, CallRecorder()))
    if kernels is not None:
        fuse_positions(model, kernels)


def fuse_modules(model: Any, kernels: RowKernels) -> None:
    """Fuse norms and activations, before linear layers are packed."""
    widths = called_with_one_tensor(model, lambda: run_three_tokens(model, CallRecorder()))
    fuse_norms(model, widths, kernels)
    fuse_activations(model, widths, kernels)


def fuse_positions(model: Any, kernels: RowKernels) -> None:
    """Fuse rotary positions, at any time."""

    def rotated() -> Rotated:
        recorder = CallRecorder()
        run_three_tokens(model, recorder)
        return [(call.query, call.key) for call in recorder.calls]

    fuse_rotary(model, rotated, kernels)
