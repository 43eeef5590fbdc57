"""The fastest this machine multiplies with the model's weights: what no engine can beat.

Arguments: MODEL_FOLDER. Prints one line, `CEILING {"gflops": …, "layer_weights": …,
"vocabulary_weights": …}`. The product that is timed is the best there is, ours or oneDNN's, at the
best number of rows, over all layers, so that no weight lies in a cache.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from gristmill.settings import Settings
from gristmill_worker.models.packing import OneDnnPacking, choose_packing

_ROWS = (128, 192, 256)
_ROUNDS = 5


@torch.inference_mode()
def main(folder: str) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    head = model.get_output_embeddings()
    linears = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
    layer_weights = sum(linear.weight.numel() for linear in linears)
    kernels = Path(Settings().cache_dir) / "kernels"
    packings = [choose_packing(torch.float32, torch.device("cpu"), kernels), OneDnnPacking()]
    best = 0.0
    for packing in packings:
        if packing is None:
            continue
        weights = [(packing.pack(linear.weight.detach()), linear.in_features) for linear in linears]
        for rows in _ROWS:
            inputs = {
                linear.in_features: torch.randn(rows, linear.in_features) for linear in linears
            }
            for _ in range(_ROUNDS):
                begun = time.perf_counter()
                for weight, width in weights:
                    weight.multiply(inputs[width], None)
                seconds = time.perf_counter() - begun
                best = max(best, 2e-9 * layer_weights * rows / seconds)
    entry = {
        "gflops": best,
        "layer_weights": layer_weights,
        "vocabulary_weights": head.weight.numel(),
    }
    print("CEILING", json.dumps(entry), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
