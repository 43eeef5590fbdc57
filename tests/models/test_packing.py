"""Ways to lay weights out: equal to the plain product, and a row's bits are its own in each."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from gristmill_worker.models.large_pages import LargePages, ReusedPages
from gristmill_worker.models.packing import OneDnnPacking, Packing, choose_packing
from gristmill_worker.models.product import CompiledPacking

CPU = torch.device("cpu")
#: What a compiler is told not to use, so that each way through the kernel is tried on any machine.
_NARROWER = {
    "compiled": "",
    "compiled, 8 lanes": "-mno-avx512f",
    "compiled, 4 lanes": "-mno-avx512f -mno-avx2",
}
#: in and out features: of SmolLM2-135M's layers (fused), sizes that fit no vector, and some that
#: are deeper than one piece of a panel.
SHAPES = [
    (576, 960),
    (1536, 576),
    (64, 20),
    (61, 7),
    (1, 1),
    (33, 97),
    (3001, 50),
    (4096, 130),
]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Packing]:
    """A packing by its name; one library for each way to compile it."""
    built: dict[str, Packing] = {}

    def build(name: str) -> Packing:
        if name == "oneDNN":
            if not OneDnnPacking.is_available():
                pytest.skip("needs oneDNN")
            return OneDnnPacking()
        if name not in built:
            folder = tmp_path_factory.mktemp("kernel")
            compiler = shutil.which("cc")
            if compiler is None:
                pytest.skip("needs a C compiler")
            script = folder / "cc"
            script.write_text(f'#!/bin/sh\nexec {compiler} "$@" {_NARROWER[name]}\n')
            script.chmod(0o755)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("CC", str(script))
                packing = CompiledPacking.load(folder)
            if packing is None:
                pytest.skip(f"this compiler does not take {_NARROWER[name]}")
            built[name] = packing
        return built[name]

    return build


@pytest.fixture(params=[*_NARROWER, "oneDNN"])
def packing(request: pytest.FixtureRequest, make: Callable[[str], Packing]) -> Packing:
    return make(request.param)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_a_product_equals_the_exact_one(packing: Packing, shape: tuple[int, int]) -> None:
    depth, width = shape
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(width, depth, generator=generator)
    bias = torch.randn(width, generator=generator)
    packed = packing.pack(weight)
    unit = torch.finfo(torch.float32).eps  # `depth` roundings of half of it each, at most

    for num_rows in (*range(71), 257):
        x = torch.randn(num_rows, depth, generator=generator)
        exact = x.double() @ weight.double().T + bias
        bound = unit * depth * (x.double().abs() @ weight.double().abs().T + bias.abs())
        found = packed.multiply(x, bias)

        assert found.shape == (num_rows, width)
        assert bool(((found - exact).abs() <= bound).all()), num_rows
        assert torch.equal(packed.multiply(x, None) + bias, found)
    assert torch.equal(packed.plain(), weight)


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_a_row_has_the_same_bits_at_every_number_of_rows_and_threads(
    packing: Packing, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(*reversed(shape), generator=generator), torch.randn(shape[1])
    packed = packing.pack(weight)
    x = torch.randn(300, shape[0], generator=generator)
    expected = packed.multiply(x, bias)
    is_quick = isinstance(packing, CompiledPacking) and shape[0] * shape[1] < 2_000
    # Where all of them would take long: the edges of tiles and of slices.
    counts = range(1, 301) if is_quick else (*range(1, 20), 31, 32, 33, 48, 64, 65, 256, 257)

    num_threads = torch.get_num_threads()
    try:
        for torch_threads in (1, 2):
            torch.set_num_threads(torch_threads)
            for num_rows in counts:
                found = packed.multiply(x[:num_rows], bias)
                assert torch.equal(found, expected[:num_rows]), (num_rows, torch_threads)
            for begin in (1, 7, 255):  # at another place in the batch
                assert torch.equal(packed.multiply(x[begin:], bias), expected[begin:])
    finally:
        torch.set_num_threads(num_threads)


@torch.inference_mode()
def test_rows_and_weights_may_lie_in_memory_in_any_way(packing: Packing) -> None:
    wide = torch.randn(2, 9, 130)
    weight = torch.randn(40, 50)
    rows = {
        "a slice": wide[..., 11:51],
        "every other row": wide[:, ::2, :40],
        "transposed": torch.randn(40, 9).t(),
        "expanded": torch.randn(1, 40).expand(9, 40),
        "every other number": wide[..., :80:2],
        "a vector": torch.randn(40),
    }
    straight, turned = packing.pack(weight.t()), packing.pack(weight.t().contiguous())

    for name, x in rows.items():
        found = straight.multiply(x, None)

        assert found.shape == (*x.shape[:-1], 50), name
        assert torch.equal(found, turned.multiply(x.contiguous(), None)), name
        torch.testing.assert_close(found, F.linear(x, weight.t()), rtol=1e-5, atol=1e-5)
    assert torch.equal(straight.plain(), weight.t())


@torch.inference_mode()
def test_all_packings_and_torch_agree(make: Callable[[str], Packing]) -> None:
    x, weight, bias = torch.randn(20, 576), torch.randn(960, 576), torch.randn(960)
    products = [
        F.linear(x, weight, bias),
        *(make(name).pack(weight).multiply(x, bias) for name in (*_NARROWER, "oneDNN")),
    ]

    for one, other in itertools.pairwise(products):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_number_that_is_none_stays_in_its_row(packing: Packing) -> None:
    x = torch.randn(20, 61)
    packed = packing.pack(torch.randn(7, 61))
    expected = packed.multiply(x, None)
    spoiled = x.clone()
    spoiled[3, 5] = float("nan")
    found = packed.multiply(spoiled, None)

    assert found[3].isnan().all()
    assert torch.equal(found[:3], expected[:3]) and torch.equal(found[4:], expected[4:])


def test_large_pages_hand_out_memory_once() -> None:
    memory = LargePages(chunk_bytes=2 << 20)
    shapes = [(3, 5), (0, 7), (1 << 18,), (100, 48, 16), (3 << 20,), (1,), (17, 17)]
    pieces = [memory.empty(shape).fill_(n) for n, shape in enumerate(shapes)]
    del memory

    for n, (piece, shape) in enumerate(zip(pieces, shapes, strict=True)):
        assert piece.shape == shape and piece.dtype is torch.float32
        assert bool((piece == n).all())
        assert piece.data_ptr() % 64 == 0


def test_large_products_take_the_same_memory_once_it_is_free() -> None:
    memory = ReusedPages()
    first = memory.empty(16, 1 << 17).fill_(1.0)
    view, place = first[3], first.data_ptr()
    del first
    while_it_is_held = memory.empty(16, 1 << 17).fill_(2.0)
    held = view.clone()
    del view
    afterwards = memory.empty(12, 1 << 17).fill_(3.0)

    assert while_it_is_held.data_ptr() != place and bool((held == 1.0).all())
    assert afterwards.data_ptr() == place and bool((while_it_is_held == 2.0).all())
    larger = memory.empty(40, 1 << 17).fill_(4.0)
    assert larger.shape == (40, 1 << 17) and bool((afterwards == 3.0).all())
    assert memory.empty(3, 5).shape == (3, 5)


def test_the_choice_is_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("cc") is None or not OneDnnPacking.is_available():
        pytest.skip("needs a C compiler and oneDNN")

    assert isinstance(choose_packing(torch.float32, CPU, tmp_path), CompiledPacking)
    assert isinstance(choose_packing(torch.float32, CPU, None), OneDnnPacking)
    assert choose_packing(torch.bfloat16, CPU, tmp_path) is None
    monkeypatch.setenv("CC", "no-such-compiler")
    assert isinstance(choose_packing(torch.float32, CPU, tmp_path), OneDnnPacking)
    monkeypatch.setattr(OneDnnPacking, "is_available", lambda: False)
    assert choose_packing(torch.float32, CPU, tmp_path) is None
