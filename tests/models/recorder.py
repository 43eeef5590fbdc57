"""A CUDA graph for CPU tensors: records operations and repeats them over the same memory.

As with a real one, what Python reads while a step is recorded is a constant ever after, results
come to lie where they lay at first, and reading the value of a tensor is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].numel() >= 1:
            raise RuntimeError("the value of a tensor was read while a graph was recorded")
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, _tensors(result)))
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        for func, args, kwargs, places in self._calls:
            for place, new in zip(places, _tensors(func(*args, **kwargs)), strict=True):
                if place.data_ptr() != new.data_ptr():
                    place.copy_(new)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Capture:
    """What StepGraphs captures with, and `replays`, which counts how often each graph ran."""

    def __init__(self) -> None:
        self.replays: list[int] = []

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        n = len(self.replays)
        self.replays.append(0)
        with Recorder() as recorder:
            step()

        def replay() -> None:
            self.replays[n] += 1
            recorder.replay()

        return replay
