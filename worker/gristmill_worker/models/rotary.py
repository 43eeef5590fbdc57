"""Rotary positions in one pass over queries and keys, in attention modules that rotate by halves.

transformers' attention modules call a function of their file, under a name that its own interface
for kernels knows as well. A module gets a forward method of its own, in which that name is ours;
the file stays as it is, for other models of this process. A function is replaced where it is seen
to rotate by halves, and all replacements stay only if the model's attention calls come out the
same.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gristmill_worker.models.row_kernels import RowKernels
from gristmill_worker.models.watch import functions_called, is_same

_NAME = "apply_rotary_pos_emb"
#: What the function and those that it calls may call; nothing that looks at values.
_FUNCTIONS = {
    *("to", "float", "type", "type_as", "get", "unsqueeze", "getitem", "size", "chunk", "split"),
    *("cat", "neg", "mul", "rmul", "add", "radd"),
}

Rotate = Callable[..., tuple[torch.Tensor, torch.Tensor]]
#: Queries and keys of every attention call of a forward pass.
Rotated = list[tuple[torch.Tensor, torch.Tensor]]


@torch.inference_mode()
def fuse_rotary(model: nn.Module, rotated: Callable[[], Rotated], kernels: RowKernels) -> None:
    """Replace the rotation in all attention modules; `rotated` runs the model once."""
    changed: list[nn.Module] = []
    found: dict[Rotate, Rotate | None] = {}
    before = rotated()
    for module in model.modules():
        plain = _forward_that_rotates(module)
        if plain is None:
            continue
        function = plain.__globals__[_NAME]
        if function not in found:
            found[function] = _fused(function, kernels)
        fused = found[function]
        if fused is not None:
            module.forward = types.MethodType(_with_global(plain, fused), module)
            changed.append(module)
    if changed and not _are_same(rotated, before):
        for module in changed:
            del module.forward


def _are_same(rotated: Callable[[], Rotated], before: Rotated) -> bool:
    try:
        after = rotated()
    except Exception:  # what was around a forward method may have been needed
        return False
    return len(after) == len(before) and all(
        is_same(found, expected, tolerance=1e-4)
        for pair, expected_pair in zip(after, before, strict=True)
        for found, expected in zip(pair, expected_pair, strict=True)
    )


def _forward_that_rotates(module: nn.Module) -> types.FunctionType | None:
    """The method as its file has it, without what was put around it."""
    forward = inspect.unwrap(type(module).forward)
    if "forward" in vars(module) or not isinstance(forward, types.FunctionType):
        return None
    uses_it = _NAME in forward.__code__.co_names and _NAME in forward.__globals__
    return forward if uses_it else None


def _with_global(function: types.FunctionType, value: object) -> types.FunctionType:
    """The same function, for which the global name is another value."""
    copied = types.FunctionType(
        function.__code__,
        {**function.__globals__, _NAME: value},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _fused(plain: Rotate, kernels: RowKernels) -> Rotate | None:
    """Our function in place of a plain one; None where that does something else."""
    dim = 16
    if not _rotates_by_halves(plain, kernels, dim, dim):
        return None
    takes_parts = _rotates_by_halves(plain, kernels, dim, dim // 2)

    def rotate(
        query: torch.Tensor,
        key: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rotary_dim = cos.shape[-1]
        if (
            args
            or kwargs
            or query.dim() != 4
            or query.shape[0] != 1
            or query.stride(3) != 1
            or key.stride(3) != 1
            or query.dtype is not torch.float32
            or key.shape[2:] != query.shape[2:]
            or cos.dim() != 3
            or cos.shape[:2] != (1, query.shape[2])
            or cos.dtype is not torch.float32
            or not (rotary_dim == query.shape[3] or (takes_parts and rotary_dim < query.shape[3]))
        ):
            return plain(query, key, cos, sin, *args, **kwargs)
        return kernels.rotate(query, key, cos.contiguous(), sin.contiguous())

    return rotate


def _rotates_by_halves(plain: Rotate, kernels: RowKernels, dim: int, rotary_dim: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    query, key, cos, sin = (
        torch.randn(shape, generator=generator)
        for shape in ((1, 3, 5, dim), (1, 2, 5, dim), (1, 5, rotary_dim), (1, 5, rotary_dim))
    )
    try:
        functions, expected = functions_called(lambda: plain(query, key, cos, sin))
    except Exception:  # it wants other arguments, or shapes that fit
        return False
    if not functions <= _FUNCTIONS or not isinstance(expected, tuple) or len(expected) != 2:
        return False
    return all(map(is_same, kernels.rotate(query, key, cos, sin), expected))
