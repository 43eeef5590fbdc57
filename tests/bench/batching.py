"""Continuous batching against one sequence at a time and against transformers in static batches.

Usage: batching.py [--workload w1] [--rounds 3]. All engines run the same token ids on the same
float32 weights, in turn, in one process; seconds leave out loading. Prints medians and ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoModelForCausalLM
from workloads import Request, load_workload

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.types import Job, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.models.gguf import convert
from gristmill_worker.models.loader import load_model

Answers = dict[str, list[int]]
#: Runs a workload; returns the seconds it took and the generated ids of each request.
Run = Callable[[list[Request]], tuple[float, Answers]]


def gristmill(path: Path, max_num_seqs: int) -> Run:
    loaded = load_model(path)

    def run(requests: list[Request]) -> tuple[float, Answers]:
        # A new engine each time: the prefix cache of the round before must not help.
        engine = build_engine(loaded, cache_dir=Settings().cache_dir, max_num_seqs=max_num_seqs)
        begun = time.perf_counter()
        for request in requests:
            params = SamplingParams(request.max_new, temperature=0.0, ignore_eos=True)
            job = Job((Row(0, request.id),), tuple(request.prompt_ids), params)
            engine.add(request.id, job)
        answers: Answers = {}
        while engine.num_live:
            for end in engine.step().finished:
                answers[end.seq_id] = list(end.generated.token_ids)
        return time.perf_counter() - begun, answers

    return run


def static(path: Path, batch_size: int) -> Run:
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = model.config.eos_token_id = None

    @torch.inference_mode()
    def run(requests: list[Request]) -> tuple[float, Answers]:
        begun = time.perf_counter()
        answers: Answers = {}
        by_length = sorted(requests, key=lambda request: len(request.prompt_ids))
        for at in range(0, len(by_length), batch_size):
            batch = by_length[at : at + batch_size]
            width = max(len(request.prompt_ids) for request in batch)
            pads = [width - len(request.prompt_ids) for request in batch]
            ids = [[2] * pad + r.prompt_ids for pad, r in zip(pads, batch, strict=True)]
            mask = [[0] * pad + [1] * (width - pad) for pad in pads]
            out = model.generate(
                torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=max(request.max_new for request in batch),
                do_sample=False,
                pad_token_id=2,
            )
            for row, request in zip(out, batch, strict=True):
                answers[request.id] = row[width : width + request.max_new].tolist()
        return time.perf_counter() - begun, answers

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="w1", choices=["w1", "w2", "w3", "a8"])
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    requests = load_workload(arguments.workload)
    path = find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path
    engines = {
        "gristmill, 64 at once": gristmill(path, 64),
        "gristmill, 1 at a time": gristmill(path, 1),
        "transformers generate, static 16": static(path, 16),
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, Answers] = {}
    for _ in range(arguments.rounds):
        for name, run in engines.items():
            took, answers[name] = run(requests)
            seconds[name].append(took)
    num_tokens = sum(request.max_new for request in requests)
    print(f"{arguments.workload}: {len(requests)} rows, {num_tokens} tokens to generate, ", end="")
    print(f"median of {arguments.rounds} round(s), {torch.get_num_threads()} threads")
    first = next(iter(engines))
    best = statistics.median(seconds[first])
    for name in engines:
        median = statistics.median(seconds[name])
        same = sum(answers[name][r.id] == answers[first][r.id] for r in requests)
        print(
            f"  {name:34} {median:7.1f} s {num_tokens / median:7.1f} tokens/s"
            f"   {median / best:5.2f} x the time   {same}/{len(requests)} rows with the same ids"
        )


if __name__ == "__main__":
    main()
