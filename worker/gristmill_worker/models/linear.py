"""Linear layers with packed weights: faster, and the same bits for a row in any company.

Layers that read the very same input, such as the projections of query, key and value, are found by
watching a forward pass and multiplied as one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from gristmill_worker.models.packing import Packing
from gristmill_worker.models.plain_weights import PlainWeights


def pack_linears(model: nn.Module, packing: Packing, forward: Callable[[], object]) -> None:
    """Replace every nn.Linear of the model by a packed one; `forward` runs the model once.

    The plain weights are given up, but for those that another module uses too (tied embeddings).
    """
    plain = PlainWeights()
    groups = _find_groups(model, forward)
    while groups:  # no group is kept, nor its weights
        _pack_group(model, groups.pop(0), packing, plain)


def _pack_group(
    model: nn.Module, group: list[tuple[str, nn.Linear]], packing: Packing, plain: PlainWeights
) -> None:
    packed = _PackedGroup(packing, [linear for _, linear in group], plain)
    for position, (name, linear) in enumerate(group):
        parent_name, _, child_name = name.rpartition(".")
        member = PackedLinear(packed, position, linear)
        setattr(model.get_submodule(parent_name), child_name, member)
    plain.let_go(linear.weight for _, linear in group)


def _find_groups(
    model: nn.Module, forward: Callable[[], object]
) -> list[list[tuple[str, nn.Linear]]]:
    """Linear layers in the order of their calls; neighbours that got the same input together.

    A layer that is called more than once in a pass, or never, makes a group of its own.
    """
    names = {module: name for name, module in model.named_modules() if type(module) is nn.Linear}
    calls: list[tuple[nn.Linear, torch.Tensor]] = []
    hooks = [
        linear.register_forward_pre_hook(lambda module, args: calls.append((module, args[0])))
        for linear in names
    ]
    forward()
    for hook in hooks:
        hook.remove()
    called = [linear for linear, _ in calls]
    groups: list[list[tuple[str, nn.Linear]]] = []
    previous: torch.Tensor | None = None
    for linear, x in calls:
        if called.count(linear) > 1:
            previous = None
            continue
        if x is previous and _can_join(groups[-1][-1], (names[linear], linear)):
            groups[-1].append((names[linear], linear))
        else:
            groups.append([(names[linear], linear)])
        previous = x
    grouped = {name for group in groups for name, _ in group}
    alone = [[(name, linear)] for linear, name in names.items() if name not in grouped]
    return groups + alone


def _can_join(one: tuple[str, nn.Linear], other: tuple[str, nn.Linear]) -> bool:
    """Siblings only: then nothing can change the input between the two calls but their parent."""
    same_parent = one[0].rpartition(".")[0] == other[0].rpartition(".")[0]
    return same_parent and (one[1].bias is None) == (other[1].bias is None)


class _PackedGroup:
    """One packed weight for all layers of a group. The first call computes, the others take."""

    def __init__(self, packing: Packing, linears: Sequence[nn.Linear], plain: PlainWeights) -> None:
        weight = plain.join([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        sizes = [linear.out_features for linear in linears]
        self._bias = torch.cat(biases) if biases else None
        self._weight = packing.pack(weight)
        self._ends = torch.tensor(sizes).cumsum(0).tolist()
        self._input: torch.Tensor | None = None
        self._output = torch.empty(0)

    def output(self, position: int, x: torch.Tensor) -> torch.Tensor:
        """The slice [..., out_features] of the layer at `position`, for the input x."""
        if position == 0 or x is not self._input:
            self._input, self._output = x, self._weight.multiply(x, self._bias)
        begin = self._ends[position - 1] if position else 0
        output = self._output[..., begin : self._ends[position]]
        if position == len(self._ends) - 1:
            self._input, self._output = None, torch.empty(0)
        return output

    def plain_weight(self, position: int) -> torch.Tensor:
        begin = self._ends[position - 1] if position else 0
        return self._weight.plain()[begin : self._ends[position]].clone()


class PackedLinear(nn.Module):
    """Stands where an nn.Linear stood."""

    def __init__(self, group: _PackedGroup, position: int, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._group = group
        self._position = position

    @functools.cached_property
    def weight(self) -> torch.Tensor:
        """For models that look at it: some ask a router's weight for its dtype."""
        return self._group.plain_weight(self._position)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.output(self._position, x)
