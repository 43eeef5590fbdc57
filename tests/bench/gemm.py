"""Products with packed weights, as a step of SmolLM2-135M makes them, by the number of its rows.

Usage: gemm.py [--rows 1 2 4 8 16 32 64 128 256] [--threads 2] [--seconds 4]

Prints GFLOP/s over the four products of a layer, and over the one with the vocabulary, of our
kernel, of oneDNN's prepacked layer and of torch's own, and how near each is to the fastest product
of the run. They take turns in one process on weights that no cache holds; other programs disturb
them, so the fastest twentieth of the calls of each shape counts.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from gristmill.settings import Settings
from gristmill_worker.models.packing import OneDnnPacking, Packing, choose_packing

_LAYERS = 30
#: (in, out) of the products of a layer: QKV, attention's output, gate and up, down.
_LAYER_SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))
_VOCABULARY_SHAPE = (576, 49_152)

Multiply = Callable[[torch.Tensor], torch.Tensor]


def packings() -> dict[str, Packing | None]:
    kernels = Path(Settings().cache_dir) / "kernels"
    chosen = choose_packing(torch.float32, torch.device("cpu"), kernels)
    found: dict[str, Packing | None] = {} if chosen is None else {chosen.name: chosen}
    if OneDnnPacking.is_available():
        found["oneDNN"] = OneDnnPacking()
    return found | {"F.linear": None}


def make_multiply(packing: Packing | None, weight: torch.Tensor) -> Multiply:
    if packing is None:
        return lambda x: torch.nn.functional.linear(x, weight)
    packed = packing.pack(weight)
    return lambda x: packed.multiply(x, None)


def fast_time_s(times: list[float]) -> float:
    return sorted(times)[len(times) // 20]


def measure(
    products: dict[str, list[tuple[tuple[int, int], Multiply]]], num_rows: int, seconds: float
) -> dict[str, tuple[float, float]]:
    """GFLOP/s of each way: over a layer, over the vocabulary."""
    inputs = {width: torch.randn(num_rows, width) for width in (576, 1536)}
    times: dict[tuple[str, tuple[int, int]], list[float]] = defaultdict(list)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name in random.sample(list(products), len(products)):
            for shape, multiply in products[name]:
                began = time.perf_counter()
                multiply(inputs[shape[0]])
                times[name, shape].append(time.perf_counter() - began)

    def rate(name: str, shapes: tuple[tuple[int, int], ...]) -> float:
        work = sum(2 * num_rows * width * height for width, height in shapes)
        return work / sum(fast_time_s(times[name, shape]) for shape in shapes) / 1e9

    return {
        name: (rate(name, _LAYER_SHAPES), rate(name, (_VOCABULARY_SHAPE,))) for name in products
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0, help="for each number of rows")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ways = packings()
    products: dict[str, list[tuple[tuple[int, int], Multiply]]] = {name: [] for name in ways}
    for width, height in (*_LAYER_SHAPES * _LAYERS, _VOCABULARY_SHAPE):
        weight = torch.randn(height, width)
        for name, packing in ways.items():
            products[name].append(((width, height), make_multiply(packing, weight)))
    found = {rows: measure(products, rows, arguments.seconds) for rows in arguments.rows}
    best = max(rate for rates in found.values() for pair in rates.values() for rate in pair)

    print(
        f"GFLOP/s, layers / vocabulary (share of the best, {best:.0f}), {arguments.threads} threads"
    )
    print(f"\n| rows | {' | '.join(ways)} |\n|{'---|' * (len(ways) + 1)}")
    for rows, rates in found.items():
        cells = (
            f"{layers:.0f} / {vocabulary:.0f} ({layers / best:.2f} / {vocabulary / best:.2f})"
            for layers, vocabulary in rates.values()
        )
        print(f"| {rows} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
