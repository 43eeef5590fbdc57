"""Activations, and gated MLPs, down(act(gate(x)) * up(x)), whose middle is one pass over memory.

An MLP is recognised by its parts and by what it does: three linear layers and an activation that
our kernel has, called on nothing but each other's results, and the same results on random numbers
of several magnitudes. Modules that do more, such as clamp or scale, are left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gristmill_worker.models.row_kernels import GateForm, RowKernels
from gristmill_worker.models.watch import (
    functions_called,
    is_same,
    replace_modules,
    trial_rows,
)

#: SiLU, tanh-GELU, quick GELU.
_FORMS = (GateForm(1.0), GateForm(1.5957691216057308, 0.044715), GateForm(1.702))
#: What the linear layers, the product and the activations call; nothing that looks at values.
_FUNCTIONS = {"linear", "mul", "rmul", "silu", "gelu", "sigmoid", "dropout", "get"}
_ACTIVATION_FUNCTIONS = {*_FUNCTIONS, "pow", "add", "radd", "tanh"}
_MAGNITUDES = (0.1, 1.0, 30.0)


@torch.inference_mode()
def find_form(module: nn.Module) -> GateForm | None:
    """The form of an activation module, where our kernel has it."""
    if len(list(module.modules())) > 1 or module.state_dict():
        return None
    x = torch.linspace(-20.0, 20.0, 4001)
    try:
        functions, expected = functions_called(lambda: module(x))
    except Exception:  # a module that wants other arguments is no activation
        return None
    if not functions <= _ACTIVATION_FUNCTIONS or not isinstance(expected, torch.Tensor):
        return None
    for form in _FORMS:
        inner = form.slope * (x.double() + form.cubic * x.double() ** 3)
        exact = (x.double() * torch.sigmoid(inner)).float()
        # torch's tanh-GELU itself is that far from its formula where it nearly vanishes.
        if torch.allclose(expected, exact, rtol=1e-5, atol=2e-6):
            return form
    return None


@torch.inference_mode()
def fuse_activations(
    model: nn.Module, widths: Mapping[nn.Module, int], kernels: RowKernels
) -> None:
    """Replace every gated MLP, and every other activation that our kernel has.

    To be called while the linear layers are plain; for `widths` see called_with_one_tensor.
    """

    def mlp(module: nn.Module) -> nn.Module | None:
        return _fused(module, widths[module], kernels) if module in widths else None

    def activation(module: nn.Module) -> nn.Module | None:
        form = find_form(module) if module in widths else None
        return None if form is None else FusedActivation(form, kernels)

    replace_modules(model, mlp)
    replace_modules(model, activation)


def _fused(module: nn.Module, width: int, kernels: RowKernels) -> FusedGatedMLP | None:
    parts = {n: part for n, part in module.named_children() if not isinstance(part, nn.Dropout)}
    linears = {n: part for n, part in parts.items() if type(part) is nn.Linear}
    others = [part for n, part in parts.items() if n not in linears]
    if len(linears) != 3 or len(others) != 1 or module.training:
        return None
    form = find_form(others[0])
    if form is None:
        return None
    activation_functions, _ = functions_called(lambda: others[0](torch.zeros(1, 1)))
    trial = trial_rows(width, _MAGNITUDES)
    try:
        functions, expected = functions_called(lambda: module(trial))
    except Exception:  # it needs more than its one argument
        return None
    if not functions <= _FUNCTIONS | activation_functions:
        return None
    for roles in itertools.permutations(linears):
        gate, up, down = (linears[name] for name in roles)
        fits = gate.in_features == up.in_features == width
        if fits and gate.out_features == up.out_features == down.in_features:
            fused = FusedGatedMLP(linears, roles, form, kernels)
            if is_same(fused(trial), expected, tolerance=1e-5):
                return fused
    return None


class FusedGatedMLP(nn.Module):
    """Stands where a gated MLP stood, with the same linear layers under the same names."""

    def __init__(
        self,
        linears: dict[str, nn.Linear],
        roles: tuple[str, ...],
        form: GateForm,
        kernels: RowKernels,
    ) -> None:
        super().__init__()
        for name, linear in linears.items():
            self.add_module(name, linear)
        self._gate, self._up, self._down = roles
        self._form, self._kernels = form, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts: dict[str, Any] = self._modules  # much quicker than to ask for an attribute
        product = self._kernels.gate(parts[self._gate](x), parts[self._up](x), self._form)
        down: torch.Tensor = parts[self._down](product)
        return down


class FusedActivation(nn.Module):
    """Stands where an activation stood."""

    def __init__(self, form: GateForm, kernels: RowKernels) -> None:
        super().__init__()
        self._form, self._kernels = form, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.gate(x, None, self._form)
