"""A device on paper: CPU tensors of which some are taken to lie on a GPU.

What would make the host wait for a GPU is noted down as a fault: reading a value of such a tensor,
a result whose shape depends on values, and a tensor of the host's that gets among them in any way
but `upload`, since such a copy waits for its turn and the host for the copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from gristmill_worker import upload
from gristmill_worker.engine.engine import ContinuousBatchingEngine

_READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")
_DEVICE, _HOST, _EITHER = "device", "host", "either"


class PaperDevice(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self._where: Any = WeakTensorKeyDictionary()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self._where[tensor] = _DEVICE
        return tensor

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        self._where[copy] = _HOST
        return copy

    def upload(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        return self.put(tensor.clone())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = _tensors((args, kwargs))
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        where = {self._where.get(t, _HOST if t.dim() else _EITHER) for t in given} - {_EITHER}
        place = _EITHER if not where else _DEVICE if _DEVICE in where else _HOST
        if name == "lift_fresh":  # torch.tensor
            place = _HOST
        if place == _DEVICE:
            self._check(name, given, is_mixed=_HOST in where)
        for tensor in _tensors(found):
            self._where[tensor] = place
        return found

    def _check(self, name: str, given: list[torch.Tensor], *, is_mixed: bool) -> None:
        by_mask = name.startswith("index") and any(t.dtype == torch.bool for t in given[1:])
        if name in _READS or by_mask:
            self.faults.append(f"{name} needs a value")
        if is_mixed:
            self.faults.append(f"{name} takes a tensor of the host: {[t.shape for t in given]}")

    def reads(self, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        """A way of reading a tensor that torch does not dispatch."""

        def watched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._where.get(tensor) == _DEVICE:
                self.faults.append(f"{name} reads a tensor of {tuple(tensor.shape)}")
            return read(tensor, *args, **kwargs)

        return watched


@contextmanager
def on_paper(
    engine: ContinuousBatchingEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PaperDevice]:
    """Within the block the model and the KV cache of `engine` lie on a device."""
    paper = PaperDevice()
    runner = engine._runner
    for tensor in (*runner.model.parameters(), *runner.model.buffers()):
        paper.put(tensor)
    for layer in runner.kv_cache.layers:
        paper.put(layer.keys)
        paper.put(layer.values)
    with monkeypatch.context() as patch:
        for name, module in list(sys.modules.items()):
            is_ours = name.startswith("gristmill_worker.") and module is not upload
            if is_ours and getattr(module, "upload", None) is upload.upload:
                patch.setattr(module, "upload", paper.upload)
        for name in ("tolist", "numpy", "cpu"):
            patch.setattr(torch.Tensor, name, paper.reads(name, getattr(torch.Tensor, name)))
        with paper:
            yield paper


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
