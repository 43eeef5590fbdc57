"""OpenVINO GenAI, continuous batching, float32 weights and cache, prefix caching on.

Arguments: OPENVINO_MODEL_FOLDER ROWS_AT_ONCE WORKLOAD...
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


def config(max_new: int) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = max_new
    config.ignore_eos, config.do_sample = True, False
    return config


def tensor(ids: list[int]) -> Any:
    return openvino.Tensor(np.array([ids], dtype=np.int64))


def main(folder: str, rows_at_once: str, *names: str) -> None:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = int(rows_at_once)
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
    scheduler.cache_size = 4
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "INFERENCE_NUM_THREADS": os.cpu_count(),
    }
    for name in names:
        # A new pipeline each time: what one workload left in the prefix cache must not help.
        pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        pipeline.generate([tensor([5, 6, 7, 8])], [config(4)])
        requests = load_workload(name)
        begun = time.perf_counter()
        results = pipeline.generate(
            [tensor(request.prompt_ids) for request in requests],
            [config(request.max_new) for request in requests],
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
