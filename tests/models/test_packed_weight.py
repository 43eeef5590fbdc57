"""Weights that a model multiplies by itself, and activations: right, and the same bits always."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import make_packing
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from gristmill_worker.models.activation import settle_activations
from gristmill_worker.models.packed_weight import PackedWeight, pack_model


class _Router(nn.Module):
    """What models do with weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 24))
        self.bias = nn.Parameter(torch.randn(8))
        self.up = nn.Parameter(torch.randn(3, 40, 24))
        self.down = nn.Parameter(torch.randn(3, 40, 24))
        self.conv = Conv1D(12, 24)
        self.table = nn.Embedding(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x.float(), self.weight.type(torch.float32), self.bias)
        experts = [
            F.linear(x, self.up[torch.tensor(i)]) @ self.down[i] for i in range(len(self.up))
        ]
        head = F.linear(x, self.table.weight) + self.table(torch.tensor(3)).sum()
        return torch.cat([scores, *experts, self.conv(x), head], dim=-1)


@pytest.fixture
def pair() -> tuple[_Router, _Router]:
    torch.manual_seed(0)
    plain = _Router().eval().requires_grad_(False)
    packed = copy.deepcopy(plain)
    pack_model(packed, make_packing(), lambda: packed(torch.randn(1, 3, 24)))
    return plain, packed


@torch.inference_mode()
def test_own_weights_are_packed_and_equal_the_plain_ones(pair: tuple[_Router, _Router]) -> None:
    plain, packed = pair
    x = torch.randn(1, 20, 24)

    torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=1e-4)
    for name in ("weight", "up", "down"):
        assert isinstance(getattr(packed, name), PackedWeight)
        assert name not in dict(packed.named_parameters())  # the plain copy is given up
    assert isinstance(packed.conv.weight, PackedWeight)
    assert type(packed.table.weight) is nn.Parameter  # an embedding is looked up, so it stays


@torch.inference_mode()
def test_own_weights_give_a_row_the_same_bits(pair: tuple[_Router, _Router]) -> None:
    packed = pair[1]
    del packed.table  # not packed: see above
    packed.table = nn.Embedding(16, 24)
    x = torch.randn(1, 64, 24)
    width = 8 + 3 * 24 + 12
    expected = packed(x)[..., :width]

    for num_rows in (*range(1, 20), 33, 63):
        assert torch.equal(packed(x[:, :num_rows])[..., :width], expected[:, :num_rows])


@torch.inference_mode()
def test_whatever_else_is_asked_of_a_packed_weight_is_answered_too() -> None:
    plain = torch.randn(3, 8, 24)
    for transposed in (False, True):
        weight: Any = PackedWeight(plain, make_packing(), transposed=transposed)

        assert weight.shape == plain.shape and weight.dtype is torch.float32
        assert torch.equal(weight.plain(), plain)
        assert torch.equal(weight[1] + 0, plain[1]) and torch.equal(weight[1:] + 0, plain[1:])
        assert torch.equal(weight.transpose(1, 2).contiguous(), plain.transpose(1, 2))
        assert torch.equal(weight.double(), plain.double())
        x, y = torch.randn(2, 24), torch.randn(2, 8)
        torch.testing.assert_close(F.linear(x, weight[2]), F.linear(x, plain[2]))
        torch.testing.assert_close(y @ weight[2], y @ plain[2])


@pytest.mark.parametrize("name", ["silu", "swish", "gelu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("width", [7, 64, 100, 1536])
@pytest.mark.parametrize("num_threads", [1, 5])
@torch.inference_mode()
def test_settled_activations_give_an_element_the_same_bits(
    name: str, width: int, num_threads: int
) -> None:
    torch.set_num_threads(num_threads)
    try:
        plain = nn.Sequential(ACT2FN[name])
        settled = copy.deepcopy(plain)
        x = torch.randn(200, 2 * width) * 4  # halves of one product, as gate and up are
        settle_activations(settled, lambda: settled(x[:3, :width]))
        expected = settled(x[:, :width])

        torch.testing.assert_close(expected, plain(x[:, :width]), rtol=1e-5, atol=1e-5)
        for num_rows in (1, 2, 3, 7, 50, 91, 101, 133):
            assert torch.equal(settled(x[:num_rows, :width]), expected[:num_rows]), num_rows
    finally:
        torch.set_num_threads(1)


def test_activations_that_are_settled_already_are_left_alone() -> None:
    model = nn.Sequential(ACT2FN["silu"], ACT2FN["relu"])

    settle_activations(model, lambda: model(torch.randn(3, 1536)))

    assert [type(module) for module in model] == [type(ACT2FN["silu"]), type(ACT2FN["relu"])]
