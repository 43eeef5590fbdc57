"""OpenVINO GenAI, continuous batching, float32 weights and cache, prefix caching on.

Arguments: OPENVINO_MODEL_FOLDER ROWS_AT_ONCE DRAFTS WORKLOAD...  (DRAFTS: tokens that prompt lookup
proposes in a step; 0 turns it off)
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from result import report
from workloads import load_workload


def config(max_new: int, drafts: int) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = max_new
    config.ignore_eos, config.do_sample = True, False
    if drafts:
        config.num_assistant_tokens, config.max_ngram_size = drafts, 3
    return config


def tensor(ids: list[int]) -> Any:
    return openvino.Tensor(np.array([ids], dtype=np.int64))


def main(folder: str, rows_at_once: str, drafts: str, *names: str) -> None:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = int(rows_at_once)
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
    scheduler.cache_size = 4
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "INFERENCE_NUM_THREADS": os.cpu_count(),
    }
    if int(drafts):
        properties["prompt_lookup"] = True
    for name in names:
        # A new pipeline each time: what one workload left in the prefix cache must not help.
        pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        pipeline.generate([tensor([5, 6, 7, 8])], [config(4, int(drafts))])
        requests = load_workload(name)
        begun = time.perf_counter()
        results = pipeline.generate(
            [tensor(request.prompt_ids) for request in requests],
            [config(request.max_new, int(drafts)) for request in requests],
        )
        seconds = time.perf_counter() - begun
        answers = {
            request.id: [int(token) for token in result.m_generation_ids[0]]
            for request, result in zip(requests, results, strict=True)
        }
        report(name, seconds, answers)
        del pipeline


if __name__ == "__main__":
    main(*sys.argv[1:])
