"""`model.generate` of transformers in static batches sorted by prompt length.

Arguments: MODEL_FOLDER ROWS_AT_ONCE 0 WORKLOAD...
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from result import report
from transformers import AutoModelForCausalLM
from workloads import Request, load_workload

_PAD = 2


@torch.inference_mode()
def generate(model: Any, batch: list[Request]) -> dict[str, list[int]]:
    width = max(len(request.prompt_ids) for request in batch)
    pads = [width - len(request.prompt_ids) for request in batch]
    ids = [[_PAD] * pad + r.prompt_ids for pad, r in zip(pads, batch, strict=True)]
    out = model.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads]),
        max_new_tokens=max(request.max_new for request in batch),
        do_sample=False,
        pad_token_id=_PAD,
    )
    return {
        request.id: row[width : width + request.max_new].tolist()
        for row, request in zip(out, batch, strict=True)
    }


def main(folder: str, rows_at_once: str, _drafts: str, *names: str) -> None:
    size = int(rows_at_once)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    generate(model, [Request("warm", [5, 6, 7, 8], 4)])
    for name in names:
        requests = sorted(load_workload(name), key=lambda request: len(request.prompt_ids))
        begun = time.perf_counter()
        answers: dict[str, list[int]] = {}
        for at in range(0, len(requests), size):
            answers |= generate(model, requests[at : at + size])
        report(name, time.perf_counter() - begun, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
