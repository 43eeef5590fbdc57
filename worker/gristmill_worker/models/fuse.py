"""Fewer passes over memory in what a transformers model does between its products.

Parts are found by what they do, never by the model's name, and each is replaced only where it is
seen to give the same numbers within rounding.
"""

from __future__ import annotations

from typing import Any

from gristmill_worker.models.gated import fuse_activations
from gristmill_worker.models.norm import fuse_norms
from gristmill_worker.models.probe import CallRecorder, run_three_tokens
from gristmill_worker.models.rotary import Rotated, fuse_rotary
from gristmill_worker.models.row_kernels import RowKernels


def fuse_model(model: Any, kernels: RowKernels) -> None:
    """Fuse norms, activations and rotary positions of a float32 model on the CPU, before its linear
    layers are packed."""

    def rotated() -> Rotated:
        recorder = CallRecorder()
        run_three_tokens(model, recorder)
        return [(call.query, call.key) for call in recorder.calls]

    fuse_norms(model, rotated, kernels)
    fuse_activations(model, rotated, kernels)
    fuse_rotary(model, rotated, kernels)
