"""Packed linear layers: grouped by their input, and equal to the plain ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import ARCHITECTURES, make_model, make_packing
from torch import nn

from gristmill_worker.models.linear import pack_linears


class _Block(nn.Module):
    """Three siblings on one input, one on another, one called twice."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(24, n, bias=bias) for n in (24, 8, 16))
        self.out = nn.Linear(24, 24, bias=bias)
        self.twice = nn.Linear(24, 24, bias=bias)
        self.mixed = nn.Linear(24, 4, bias=not bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.k(x), self.v(x)], -1) + self.q(x)
        z = self.twice(self.twice(self.out(y)))
        return torch.cat([z, self.mixed(x)], -1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 3, 64])
@torch.inference_mode()
def test_packed_layers_equal_plain_ones(bias: bool, num_rows: int) -> None:
    torch.manual_seed(0)
    plain = _Block(bias).eval()
    packed = copy.deepcopy(plain)
    pack_linears(packed, make_packing(), lambda: packed(torch.randn(1, 3, 24)))
    x = torch.randn(1, num_rows, 24)

    for _ in range(2):
        torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=1e-5)

    assert not [module for module in packed.modules() if isinstance(module, nn.Linear)]
    assert packed.q._group is packed.k._group is packed.v._group
    assert packed.q._group is not packed.out._group
    assert packed.mixed._group is not packed.q._group


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_a_packed_model_equals_the_plain_one(name: str) -> None:
    plain: Any = make_model(name)
    packed = copy.deepcopy(plain)
    ids = torch.randint(3, 199, (1, 20), generator=torch.Generator().manual_seed(0))
    pack_linears(packed, make_packing(), lambda: packed(ids[:, :3], use_cache=False))

    torch.testing.assert_close(
        packed(ids, use_cache=False).logits,
        plain(ids, use_cache=False).logits,
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_packed_layer_still_shows_its_weight() -> None:
    plain = _Block(bias=True).eval()
    packed = copy.deepcopy(plain)
    pack_linears(packed, make_packing(), lambda: packed(torch.randn(1, 3, 24)))

    for name in ("q", "k", "v", "out", "twice"):
        assert torch.equal(getattr(packed, name).weight, getattr(plain, name).weight)
