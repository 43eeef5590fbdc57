"""transformers' own continuous batching, with scaled dot-product attention over a paged cache.

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
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from workloads import Request, load_workload

_PAGE = 32


def answer(model: Any, requests: list[Request], rows_at_once: int) -> dict[str, list[int]]:
    num_pages = sum(-(-(len(r.prompt_ids) + r.max_new) // _PAGE) for r in requests)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=2,
            bos_token_id=1,
            max_new_tokens=max(r.max_new for r in requests),
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=num_pages + 16,
            max_batch_tokens=512,
            max_requests_per_batch=rows_at_once,
            use_cuda_graph=False,
            use_async_batching=False,
        ),
    )
    manager.start()
    for r in requests:
        manager.add_request(
            r.prompt_ids, request_id=r.id, max_new_tokens=r.max_new, eos_token_id=-1
        )
    answers: dict[str, list[int]] = {}
    while len(answers) < len(requests):
        result = manager.get_result(timeout=1)
        if result is not None:
            if result.error:
                raise SystemExit(f"{result.request_id}: {result.error}")
            answers[result.request_id] = list(result.generated_tokens)
        elif not manager.is_running():
            raise SystemExit("the manager of transformers has stopped")
    manager.stop(block=True)
    return answers


@torch.inference_mode()
def main(folder: str, rows_at_once: str, _drafts: str, *names: str) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = model.config.eos_token_id = -1
    answer(model, [Request("warm", [5, 6, 7, 8], 4)], 1)
    for name in names:
        requests = load_workload(name)
        begun = time.perf_counter()
        answers = answer(model, requests, int(rows_at_once))
        report(name, time.perf_counter() - begun, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
