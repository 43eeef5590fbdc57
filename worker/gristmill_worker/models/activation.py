"""Activations that give an element the same bits wherever it lies in a batch.

torch computes SiLU and tanh-GELU a vector at a time, and what is left over at the end of a row, or
of a thread's share, by another formula whose last bit may differ. With one thread and rows that are
whole vectors nothing is left over. With more threads, or odd widths, it depends on the number of
rows where the shares end. Then the activation is put together from functions that have one formula
for every element (exp, tanh and plain arithmetic): a few more passes over memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import GELUActivation, GELUTanh, SiLUActivation

#: Elements that torch takes at once: two vectors of AVX-512.
_STRIDE = 32


def settle_activations(model: nn.Module, forward: Callable[[], object]) -> None:
    """Replace the activations whose bits would depend on the batch; `forward` runs once."""
    widths: dict[nn.Module, set[int]] = {}

    def note(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        widths.setdefault(module, set()).add(args[0].shape[-1])

    known = {module for module in model.modules() if _settled(module) is not None}
    hooks = [module.register_forward_pre_hook(note) for module in known]
    forward()
    for hook in hooks:
        hook.remove()
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            settled = _settled(child)
            if settled is None:
                continue
            if isinstance(settled, SettledGELU) or not _is_whole(widths.get(child, {1})):
                setattr(parent, name, settled)


def _is_whole(widths: set[int]) -> bool:
    """Whether every thread's share is made of whole strides, for any number of rows."""
    num_threads = torch.get_num_threads()
    return num_threads <= 2 and all(width % (_STRIDE * num_threads) == 0 for width in widths)


def _settled(module: nn.Module) -> nn.Module | None:
    if type(module) in (nn.SiLU, SiLUActivation):
        return SettledSiLU()
    if type(module) is GELUTanh:
        return SettledGELUTanh()
    if type(module) is GELUActivation and module.act is nn.functional.gelu:
        return SettledGELU()
    return None


class SettledSiLU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.neg().exp_().add_(1.0)


class SettledGELUTanh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = (x * x).mul_(x).mul_(0.044715).add_(x).mul_(0.7978845608028654)
        return inner.tanh_().add_(1.0).mul_(x).mul_(0.5)


class SettledGELU(nn.Module):
    """torch takes oneDNN's GELU for what lies dense in memory, as one row of a half always does,
    and its own for what does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x.contiguous())
