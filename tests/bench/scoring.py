"""Log-likelihoods beside lm-evaluation-harness, on the same texts, in turns.

Usage: scoring.py [--rows 12] [--rounds 3] [--rivals FOLDER]

Two tasks: four choices behind contexts of 300 tokens, and plain continuations that share nothing.
The harness runs over transformers, as `make bench-rivals` sets it up, with the batch size out of
1, 4 and 16 that is fastest for it. Tokenising is part of the time, loading is not. Prints a
Markdown table: rows/s of each, the ratio with its spread, the largest relative difference of a sum,
and how many best choices agree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill_worker.models.gguf import convert

_ENGINES = Path(__file__).with_name("engines")
sys.path.insert(0, str(_ENGINES))

from score_rows import ScoreRow, choice_rows, plain_rows  # noqa: E402

_TASKS = ("4 choices, contexts of 300 tokens", "plain, 120 + 40 tokens")
_BATCH_SIZES = (1, 4, 16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rivals", type=Path, default=Path(".rivals"))
    arguments = parser.parse_args()
    rival = arguments.rivals / "lmeval/bin/python"
    if not rival.is_file():
        sys.exit(f"lm-evaluation-harness is not in {arguments.rivals}: run make bench-rivals")
    folder = find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path
    rows = [choice_rows(folder, arguments.rows), plain_rows(folder, 2 * arguments.rows)]
    few = [rows[0][:1], rows[1][:4]]
    best = [
        min(_BATCH_SIZES, key=lambda size: _theirs(rival, folder, [some], size)[0]["seconds"])
        for some in few
    ]
    rounds = []
    for _ in range(arguments.rounds):
        ours = _run(sys.executable, "gristmill_scores.py", folder, rows)
        theirs = [
            _theirs(rival, folder, [of_task], size)[0]
            for of_task, size in zip(rows, best, strict=True)
        ]
        rounds.append((ours, theirs))
    print(f"\n{arguments.rounds} rounds, {os.cpu_count()} cores, float32, SmolLM2-135M-Instruct\n")
    print("| | Gristmill rows/s | harness rows/s (batch) | ratio | CPU time | sums | best |")
    print("|---|---|---|---|---|---|---|")
    for i, task in enumerate(_TASKS):
        _print(task, rows[i], best[i], [(ours[i], theirs[i]) for ours, theirs in rounds])


def _print(task: str, rows: list[ScoreRow], size: int, rounds: list[tuple[Any, Any]]) -> None:
    ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in rounds]
    cpu = statistics.median(t["cpu_seconds"] / o["cpu_seconds"] for o, t in rounds)
    speeds = [
        statistics.median(len(rows) / one[side]["seconds"] for one in rounds) for side in (0, 1)
    ]
    ours, theirs = rounds[0][0]["sums"], rounds[0][1]["sums"]
    pairs = [(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    agree = sum(x.index(max(x)) == y.index(max(y)) for x, y in zip(ours, theirs, strict=True))
    print(
        f"| {task} | {speeds[0]:.2f} | {speeds[1]:.2f} ({size}) | "
        f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) | "
        f"1 : {cpu:.1f} | {worst:.0e} | {agree} of {len(rows)} |"
    )


def _theirs(rival: Path, folder: Path, rows: list[list[ScoreRow]], size: int) -> Any:
    return _run(str(rival.absolute()), "lm_eval_scores.py", folder, rows, str(size))


def _run(python: str, script: str, folder: Path, rows: list[list[ScoreRow]], *more: str) -> Any:
    with TemporaryDirectory() as scratch:
        rows_file, result_file = Path(scratch) / "rows.json", Path(scratch) / "result.json"
        warm_up = [rows[0][0]]
        rows_file.write_text(json.dumps([warm_up, *rows]))
        subprocess.run(
            [python, str(_ENGINES / script), str(folder), str(rows_file), str(result_file), *more],
            check=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        return json.loads(result_file.read_text())


if __name__ == "__main__":
    main()
