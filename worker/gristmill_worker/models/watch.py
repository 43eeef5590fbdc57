"""Watches what the parts of a model do, so that those can be replaced of which enough is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class _Names(TorchFunctionMode):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.add(func.__name__.strip("_"))
        return func(*args, **(kwargs or {}))


def functions_called(call: Callable[[], object]) -> tuple[set[str], object]:
    """The names of all torch functions that a call makes, without the underscores around them, and
    its result."""
    with _Names() as watch:
        result = call()
    return watch.names, result


def trial_rows(width: int, magnitudes: Sequence[float]) -> torch.Tensor:
    """Random rows, the same each time, some of each magnitude. [1, T, width]"""
    rows = torch.randn(1, 2 * len(magnitudes), width, generator=torch.Generator().manual_seed(0))
    return rows * torch.tensor(magnitudes).repeat_interleave(2)[:, None]


def is_same(found: object, expected: object, *, tolerance: float = 5e-6) -> bool:
    """Whether two tensors are equal but for the rounding of the last bits in each of their rows."""
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return False
    if found.shape != expected.shape or found.dtype is not expected.dtype:
        return False
    largest = expected.abs().amax(dim=-1, keepdim=True)
    return bool(((found - expected).abs() <= tolerance * largest).all())


def called_with_one_tensor(model: nn.Module, forward: Callable[[], object]) -> dict[nn.Module, int]:
    """The modules that get one floating tensor and nothing else in a pass, and its last size."""
    widths: dict[nn.Module, int] = {}
    others: set[nn.Module] = set()

    def note(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        x = args[0] if len(args) == 1 and not kwargs else None
        width = x.shape[-1] if isinstance(x, torch.Tensor) and x.is_floating_point() else None
        if width is None or widths.setdefault(module, width) != width:
            others.add(module)

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in model.modules()]
    forward()
    for hook in hooks:
        hook.remove()
    return {module: width for module, width in widths.items() if module not in others}


def replace_modules(model: nn.Module, replacement: Callable[[nn.Module], nn.Module | None]) -> None:
    """Put the replacement, where there is one, in all places where a module stands."""
    replacements = {module: replacement(module) for module in model.modules()}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            new = None if child is None else replacements.get(child)
            if new is not None:
                setattr(parent, name, new)
