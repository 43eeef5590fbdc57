"""Writes down what a forward pass does: calls of our kernels, sums, and whatever else torch does.

Tensors are known by their memory. All that is made during the pass is kept alive by its events, so
that no two pieces of memory have the same address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gristmill_worker.native import Kernel, watched_kernels

#: Where they answer with memory that they were given, they touch none of it.
_VIEWS = {
    *("view", "_unsafe_view", "_reshape_alias", "transpose", "t", "permute", "slice", "select"),
    *("unsqueeze", "squeeze", "expand", "alias", "detach", "split", "split_with_sizes", "chunk"),
    *("unbind", "as_strided", "reshape", "flatten", "contiguous", "to", "dropout"),
}
_ALLOCATIONS = {"empty", "new_empty", "empty_strided", "new_empty_strided"}


@dataclass(frozen=True, slots=True)
class Began:
    """A module was called."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A module returned."""

    module: nn.Module
    output: Any


@dataclass(frozen=True, slots=True)
class Made:
    """Memory was taken for a tensor."""

    tensor: torch.Tensor

    @property
    def begin(self) -> int:
        return self.tensor.untyped_storage().data_ptr()

    @property
    def num_bytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()


@dataclass(frozen=True, slots=True)
class Called:
    """A kernel was called."""

    kernel: Kernel
    values: tuple[float, ...]

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(int(value) for value in self.values[: self.kernel.num_pointers])


@dataclass(frozen=True, slots=True)
class Other:
    """torch did something else, with tensors at these addresses."""

    name: str
    addresses: tuple[int, ...]


Event = Began | Ended | Made | Called | Other


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, events: list[Event], add: Kernel) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._events, self._add = events, add

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors(args)}
        made = [t for t in _tensors(out) if t.untyped_storage().data_ptr() not in given]
        if name in _VIEWS and not made:
            return out
        self._events.extend(map(Made, made))
        if name in _ALLOCATIONS:
            return out
        if func is torch.ops.aten.add.Tensor and _is_plain_sum(args, kwargs, out):
            addresses = tuple(tensor.data_ptr() for tensor in (*args, out))
            self._events.append(Called(self._add, (*addresses, out.numel())))
        else:
            addresses = tuple(tensor.data_ptr() for tensor in _tensors((args, kwargs, out)))
            self._events.append(Other(name, addresses))
        return out


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_plain_sum(args: tuple[Any, ...], kwargs: Any, out: torch.Tensor) -> bool:
    return not kwargs and all(
        isinstance(tensor, torch.Tensor)
        and tensor.dtype is torch.float32
        and tensor.shape == out.shape
        and tensor.is_contiguous()
        for tensor in (*args, out)
    )


@contextmanager
def traced(model: nn.Module, add: Kernel) -> Iterator[list[Event]]:
    """The events of the one forward pass that is made within the block, in their order.

    A sum of two dense tensors is noted as a call of `add`.
    """
    events: list[Event] = []

    def began(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        events.append(Began(module, args, kwargs))

    def ended(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        events.append(Ended(module, output))

    parents = [module for module in model.modules() if next(module.children(), None) is not None]
    hooks = [module.register_forward_pre_hook(began, with_kwargs=True) for module in parents]
    hooks += [module.register_forward_hook(ended) for module in parents]
    try:
        with (
            watched_kernels(lambda kernel, values: events.append(Called(kernel, values))),
            _Dispatch(events, add),
        ):
            yield events
    finally:
        for hook in hooks:
            hook.remove()
