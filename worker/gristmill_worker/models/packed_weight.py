"""Packed weights for products that a model makes by itself, outside of nn.Linear.

Routers, stacks of experts, GPT-2's Conv1D and some heads hold a parameter and call `linear`,
`matmul` or `addmm` with it. Such parameters are found by watching a forward pass, and replaced by a
tensor that answers just these calls with the packed product. The model's own code stays in charge.
Whatever else is asked of the tensor gets the plain weight, unpacked on the spot: slow, and right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from gristmill_worker.models.activation import settle_activations
from gristmill_worker.models.linear import pack_linears
from gristmill_worker.models.packing import PackedMatrix, Packing
from gristmill_worker.models.plain_weights import PlainWeights

_LINEAR = {torch.nn.functional.linear}
_MATMUL = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm}
_ADDMM = {torch.addmm}
_CASTS = {torch.Tensor.float, torch.Tensor.type, torch.Tensor.to}


def pack_model(model: Any, packing: Packing, forward: Callable[[], object]) -> None:
    """Make a transformers model fast, and give a row the same bits in any company.

    `forward` runs the model once; it is watched.
    """
    if hasattr(model, "set_experts_implementation"):
        # The model's own loop over experts, whose products are seen one by one.
        model.set_experts_implementation("eager")
    pack_linears(model, packing, forward)
    _pack_own_weights(model, packing, forward)
    settle_activations(model, forward)


def _pack_own_weights(model: nn.Module, packing: Packing, forward: Callable[[], object]) -> None:
    """Replace the parameters that the model multiplies by itself; `forward` runs it once."""
    holders: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            holders.setdefault(parameter.data_ptr(), []).append((module, name))
    with _Watch() as watch:
        forward()
    weights = PlainWeights()
    for pointer, transposed in watch.products.items():
        places = [(m, n) for m, n in holders.get(pointer, ()) if not isinstance(m, nn.Embedding)]
        if not places:
            continue
        plain = getattr(*places[0]).detach()
        if plain.dim() not in (2, 3):
            continue
        packed = PackedWeight(plain, packing, transposed=transposed)
        for module, name in places:
            del module._parameters[name]
            setattr(module, name, packed)
        weights.let_go([plain])


class _Watch(TorchFunctionMode):
    """Notes the memory of each weight in a product, and whether it is [in, out] (transposed)."""

    def __init__(self) -> None:
        self.products: dict[int, bool] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        operands = _operands(func, args)
        if operands is not None and not isinstance(operands[1], PackedWeight):
            self.products[operands[1].untyped_storage().data_ptr()] = func not in _LINEAR
        return func(*args, **(kwargs or {}))


def _operands(
    func: Any, args: tuple[Any, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """Input, weight and bias of a product; None when the call is something else."""
    if func in _LINEAR and len(args) >= 2:
        return args[0], args[1], args[2] if len(args) > 2 else None
    if func in _MATMUL and len(args) == 2:
        return args[0], args[1], None
    if func in _ADDMM and len(args) == 3:
        return args[1], args[2], args[0]
    return None


class PackedWeight(torch.Tensor):
    """A weight [out, in], or [in, out] when `transposed`, or a stack of such for experts."""

    _parts: list[PackedMatrix]
    _transposed: bool

    @staticmethod
    def __new__(cls, plain: torch.Tensor, packing: Packing, *, transposed: bool) -> PackedWeight:
        stack: Iterable[torch.Tensor] = plain if plain.dim() == 3 else [plain]
        parts = [packing.pack(part.t() if transposed else part) for part in stack]
        return cls._of(parts, plain.shape, transposed)

    @classmethod
    def _of(cls, parts: list[PackedMatrix], shape: torch.Size, transposed: bool) -> PackedWeight:
        self: PackedWeight = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)
        self._parts, self._transposed = parts, transposed
        return self

    def plain(self) -> torch.Tensor:
        parts = [part.plain() for part in self._parts]
        parts = [part.t() if self._transposed else part for part in parts]
        return torch.stack(parts) if self.dim() == 3 else parts[0]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        operands = None if kwargs else _operands(func, args)
        if operands is not None:
            x, weight, bias = operands
            is_usual = bias is None or bias.dim() == 1
            if (
                isinstance(weight, cls)
                and is_usual
                and weight._fits(transposed=func not in _LINEAR)
            ):
                return weight._parts[0].multiply(x, bias)
        if func is torch.Tensor.__getitem__ and isinstance(args[0], cls):
            expert = args[0]._expert(args[1])
            if expert is not None:
                return expert
        if func in _CASTS and not kwargs and args[1:] in ((), (args[0].dtype,)):
            return args[0]  # routers ask for float32, which it is
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(cls, cls.plain, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fits(self, *, transposed: bool) -> bool:
        return len(self._parts) == 1 and self.dim() == 2 and self._transposed == transposed

    def _expert(self, index: object) -> PackedWeight | None:
        """One of a stack, by an int or a tensor that holds one."""
        if isinstance(index, torch.Tensor) and index.dim() == 0 and index.dtype is torch.long:
            index = int(index)
        if self.dim() != 3 or type(index) is not int:
            return None
        return self._of([self._parts[index]], self.shape[1:], self._transposed)
