"""A thousand short requests through `gristmill run`, held against transformers, row by row.

Usage: exactness.py [--rows 1000]. Every custom_id must appear once. Greedy rows must have the ids
that `model.generate` gives each of them alone on the same float32 weights; where they differ, the
gap between the two logits at the first difference is shown (a near-tie, or a fault).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoModelForCausalLM

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.stores.local import LocalStore
from gristmill.types import Job, RowResult
from gristmill.wire import decode_segment, decode_shard
from gristmill_worker.models.gguf import convert

_SUBJECTS = "the sea,a clock,Lagos,winter bread,an old map,the number seven,rain,a red bicycle"
_TASKS = (
    "Write one sentence about {}.",
    "List three words that go with {}.",
    "Explain {} to a child.",
    "Is {} heavier than a feather? Answer yes or no.",
    "Translate '{}' into French, and say how sure you are. " * 3,
    "Here is a note about {}. {} was seen last week near the river, and nobody knows why. "
    "People talked about {} for days. Summarise this note in a few words.",
)


def make_requests(num_rows: int) -> list[dict[str, Any]]:
    rng = random.Random(20)
    lines = []
    for i in range(num_rows):
        subject = rng.choice(_SUBJECTS.split(","))
        body: dict[str, Any] = {
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": rng.choice(_TASKS).replace("{}", subject)}],
            "max_tokens": rng.choice([1, 3, 8, 16, 24]),
            "temperature": rng.choice([0, 0, 0, 0.7, 1.2]),
        }
        if rng.random() < 0.3:
            body["messages"].insert(0, {"role": "system", "content": "Answer in few words."})
        extras = {"top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": i, "ignore_eos": True}
        for name in rng.sample(list(extras), rng.choice([0, 0, 1, 2])):
            body[name] = extras[name]
        if rng.random() < 0.1:
            body["stop"] = [".", "\n"]
        lines.append(
            {
                "custom_id": f"row-{i}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
        )
    return lines


def run_gristmill(folder: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [str(Path(sys.executable).with_name("gristmill")), "run", str(source)]
    command += ["-o", str(output), "--model", "smollm2-135m", "--keep-work", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def read_work(folder: Path) -> list[tuple[Job, RowResult]]:
    """Every Job of the run with its result, from the Shards and Segments of the work folder."""
    store = LocalStore(folder / "out.jsonl.work" / "store")
    keys = list(store.list("t/"))
    shards = [decode_shard(store.get(key)) for key in keys if "/shards/" in key]
    jobs = {shard.n: shard.jobs for shard in shards}
    pairs = []
    for key in keys:
        if "/segments/" in key:
            segment = decode_segment(store.get(key))
            pairs += [(jobs[segment.shard_n][r.job_idx], r) for r in segment.results]
    return pairs


@torch.inference_mode()
def generate_alone(model: Any, job: Job) -> list[int]:
    prompt = torch.tensor([job.prompt_ids])
    eos = None if job.params.ignore_eos else [2]
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=job.params.max_tokens,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=2,
    )
    ids: list[int] = out[0, prompt.shape[1] :].tolist()
    return ids


@torch.inference_mode()
def gap_at(model: Any, job: Job, ours: list[int], theirs: list[int]) -> tuple[int, float]:
    """Where two answers part, and how far apart the two logits are there."""
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    ids = torch.tensor([[*job.prompt_ids, *theirs[:at]]])
    logits = model(ids, use_cache=False).logits[0, -1]
    return at, float(logits[theirs[at]] - logits[ours[at]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    lines = make_requests(parser.parse_args().rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.perf_counter()
        summary = run_gristmill(folder, lines)
        print(f"gristmill run: {time.perf_counter() - begun:.1f} s in all,", end=" ")
        print(f"{summary['generated_tokens']} tokens at {summary['tokens_per_s']:.1f} tokens/s")
        answered = [json.loads(line) for line in (folder / "out.jsonl").open()]
        counts = Counter(line["custom_id"] for line in answered)
        assert counts == Counter(line["custom_id"] for line in lines), "a row is lost or doubled"
        print(f"every custom_id exactly once: {len(counts)} of {len(lines)}")
        pairs = read_work(folder)
    path = find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    greedy = [(job, result) for job, result in pairs if job.params.greedy]
    num_rows = num_differ = 0
    for job, result in greedy:
        ours, theirs = list(result.choices[0].token_ids), generate_alone(model, job)
        num_rows += len(job.rows)
        if job.params.stop:  # generate knows no stop strings here: ours is a beginning of theirs
            theirs = theirs[: len(ours)]
        if ours != theirs:
            num_differ += 1
            at, gap = gap_at(model, job, ours, theirs)
            print(f"  {job.rows[0].custom_id}: token {at} differs, logits {gap:.2e} apart")
    print(f"greedy: {num_rows} rows in {len(greedy)} Jobs, {num_differ} Jobs differ from generate")


if __name__ == "__main__":
    main()
