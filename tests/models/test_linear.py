"""Packed linear layers: equal to the plain ones, and bit-stable over the number of rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import ARCHITECTURES, make_model
from torch import nn

from gristmill_worker.models.linear import MAX_ROWS, can_pack, pack_linears

pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")), reason="needs oneDNN's prepacked linear"
)
#: in and out features of SmolLM2-135M's layers (fused), and sizes that fit no vector.
SHAPES = [(576, 960), (576, 3072), (1536, 576), (576, 49_152), (64, 20), (61, 7)]


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
@pytest.mark.parametrize("num_rows", [1, 3, 64, MAX_ROWS + 5])
@torch.inference_mode()
def test_packed_layers_equal_plain_ones(bias: bool, num_rows: int) -> None:
    torch.manual_seed(0)
    plain = _Block(bias).eval()
    packed = copy.deepcopy(plain)
    pack_linears(packed, lambda: packed(torch.randn(1, 3, 24)))
    x = torch.randn(1, num_rows, 24)

    for _ in range(2):
        torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=1e-5)

    assert not [module for module in packed.modules() if isinstance(module, nn.Linear)]
    assert packed.q._group is packed.k._group is packed.v._group
    assert packed.q._group is not packed.out._group
    assert packed.mixed._group is not packed.q._group


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_a_row_has_the_same_bits_at_every_number_of_rows(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(*shape, bias=False))
    x = torch.randn(MAX_ROWS + 1, shape[0])
    pack_linears(model, lambda: model(x[:3]))
    expected = model(x[:MAX_ROWS])

    for num_rows in (*range(1, 20), 31, 32, 33, 48, 64, 65, 100, 200, 255, MAX_ROWS + 1):
        rows = min(num_rows, MAX_ROWS)
        assert torch.equal(model(x[:num_rows])[:rows], expected[:rows]), num_rows
    for begin in (1, 7, MAX_ROWS - 1):  # at another place in the batch
        assert torch.equal(model(x[begin:])[0], expected[begin])


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_a_packed_model_equals_the_plain_one(name: str) -> None:
    plain: Any = make_model(name)
    packed = copy.deepcopy(plain)
    ids = torch.randint(3, 199, (1, 20), generator=torch.Generator().manual_seed(0))
    pack_linears(packed, lambda: packed(ids[:, :3], use_cache=False))

    torch.testing.assert_close(
        packed(ids, use_cache=False).logits,
        plain(ids, use_cache=False).logits,
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_packed_layer_still_shows_its_weight() -> None:
    plain = _Block(bias=True).eval()
    packed = copy.deepcopy(plain)
    pack_linears(packed, lambda: packed(torch.randn(1, 3, 24)))

    for name in ("q", "k", "v", "out", "twice"):
        assert torch.equal(getattr(packed, name).weight, getattr(plain, name).weight)
