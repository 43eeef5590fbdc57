"""What LoRA adapters add to the linear layers of a model, each for the rows that ask for it.

In a step without such rows nothing is different: layers are replaced for the others only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gristmill_worker.models.packing import PackedMatrix, Packing


@dataclass(frozen=True, slots=True)
class Delta:
    """What an adapter adds to the output of one linear layer: up(down(x)).

    The scale is in `up`. Both are packed as the model's own weights are, so that a row has the same
    bits in any company.
    """

    down: PackedMatrix  # [rank, in]
    up: PackedMatrix  # [out, rank]

    def of(self, x: torch.Tensor) -> torch.Tensor:  # [R, in] -> [R, out]
        return self.up.multiply(self.down.multiply(x, None), None)


#: By the names of the linear layers.
Deltas = Mapping[str, Delta]


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The tokens of a step that belong to Sequences of one adapter."""

    adapter: str
    indices: torch.Tensor  # [R] int64, packed rows, each once


class PlainMatrix:
    """See PackedMatrix: a weight as it is, where the model's own are not packed either."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.contiguous()

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return nn.functional.linear(x, self._weight, bias)

    def plain(self) -> torch.Tensor:
        return self._weight


def pack_or_keep(weight: torch.Tensor, packing: Packing | None) -> PackedMatrix:  # [out, in]
    return PlainMatrix(weight) if packing is None else packing.pack(weight)


class AdaptedLayers:
    """The linear layers of one model that any of its adapters adds to."""

    def __init__(self, model: nn.Module, adapters: Mapping[str, Deltas]) -> None:
        """`adapters` by their identities."""
        self._adapters = adapters
        self._places: list[tuple[dict[str, Any], _AdaptedLayer]] = []
        for name in dict.fromkeys(name for deltas in adapters.values() for name in deltas):
            module = model.get_submodule(name)
            deltas = {identity: of[name] for identity, of in adapters.items() if name in of}
            self._places.append((vars(module), _AdaptedLayer(module.forward, deltas)))

    @contextmanager
    def in_place(self, rows: Sequence[AdapterRows], num_tokens: int) -> Iterator[None]:
        """Within the block, layers add to these rows, of a step with so many tokens."""
        present = {of.adapter for of in rows}
        assert present <= self._adapters.keys(), f"of {present} some are not loaded"
        changed = [
            (place, layer) for place, layer in self._places if layer.prepare(rows, num_tokens)
        ]
        for place, layer in changed:
            place["forward"] = layer  # it hides the method of the class
        try:
            yield
        finally:
            for place, _ in changed:
                del place["forward"]


class _AdaptedLayer:
    def __init__(
        self, forward: Callable[[torch.Tensor], torch.Tensor], deltas: Mapping[str, Delta]
    ) -> None:
        self._forward, self._deltas = forward, deltas
        self._parts: list[tuple[Delta, torch.Tensor]] = []
        self._num_tokens = 0

    def prepare(self, rows: Sequence[AdapterRows], num_tokens: int) -> bool:
        """For the next step; whether it adds to any of these rows."""
        self._parts = [
            (self._deltas[of.adapter], of.indices) for of in rows if of.adapter in self._deltas
        ]
        self._num_tokens = num_tokens
        return bool(self._parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [1, T, in] -> [1, T, out]
        output = self._forward(x)
        rows, sums = x.view(-1, x.shape[-1]), output.view(-1, output.shape[-1])
        assert len(rows) == self._num_tokens, "a layer that does not see each token of a step"
        for delta, indices in self._parts:
            if len(indices) == len(rows):
                sums.add_(delta.of(rows))
            else:
                sums.index_add_(0, indices, delta.of(rows.index_select(0, indices)))
        return output
