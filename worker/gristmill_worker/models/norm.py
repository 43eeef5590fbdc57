"""RMS norms in one pass over memory, where a module is seen to be one.

A module is recognised by what it does: it calls nothing but the few functions that such a norm is
made of, and its results on random numbers of several magnitudes are those of our kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from gristmill_worker.models.row_kernels import RowKernels
from gristmill_worker.models.watch import (
    functions_called,
    is_same,
    replace_modules,
    trial_rows,
)

#: All that a forward pass may call. None of them looks at values, so that what holds for random
#: numbers holds for all.
_FUNCTIONS = {
    *("to", "float", "type", "type_as", "get"),  # "get": a property, such as dtype
    *("pow", "square", "mul", "rmul", "div", "truediv", "add", "radd", "mean"),
    *("rsqrt", "sqrt", "rms_norm"),
}
#: Small enough for eps to show, usual, and large.
_MAGNITUDES = (1e-3, 1.0, 50.0)
_LARGEST_EPS = 1e-2


@torch.inference_mode()
def fuse_norms(model: nn.Module, widths: Mapping[nn.Module, int], kernels: RowKernels) -> None:
    """Replace every RMS norm of the model; for `widths` see called_with_one_tensor."""

    def replacement(module: nn.Module) -> nn.Module | None:
        if module not in widths or not _may_be_norm(module):
            return None
        return _fused(module, widths[module], kernels)

    replace_modules(model, replacement)


def _may_be_norm(module: nn.Module) -> bool:
    parameters = dict(module.named_parameters())
    return (
        not list(module.children())
        and not list(module.buffers())
        and set(parameters) <= {"weight"}
        and all(parameter.dim() == 1 for parameter in parameters.values())
        and bool(_epsilons(module))
    )


def _epsilons(module: nn.Module) -> list[float]:
    values = [value for value in vars(module).values() if type(value) is float]
    return [value for value in values if 0 < value <= _LARGEST_EPS]


def _fused(module: nn.Module, width: int, kernels: RowKernels) -> FusedRMSNorm | None:
    trial = trial_rows(width, _MAGNITUDES)
    try:
        functions, expected = functions_called(lambda: module(trial))
    except Exception:  # a module that wants other arguments is none of ours
        return None
    if not functions <= _FUNCTIONS:
        return None
    for scale in _scales(module):
        for eps in _epsilons(module):
            fused = FusedRMSNorm(module, scale, eps, kernels)
            if is_same(fused(trial), expected):
                return fused
    return None


def _scales(module: nn.Module) -> Iterator[torch.Tensor | None]:
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor):
        yield weight.detach().float().clone(memory_format=torch.contiguous_format)
        yield 1.0 + weight.detach().float()
    yield None


class FusedRMSNorm(nn.Module):
    """Stands where an RMS norm stood. `scale` is its weight, or 1 + its weight."""

    def __init__(
        self, plain: nn.Module, scale: torch.Tensor | None, eps: float, kernels: RowKernels
    ) -> None:
        super().__init__()
        weight = getattr(plain, "weight", None)
        self.weight = weight if isinstance(weight, nn.Parameter) else None
        self._scale, self._eps, self._kernels = scale, eps, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.rms_norm(x, self._scale, self._eps)
