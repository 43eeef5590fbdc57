"""How long a worker takes from nothing to its first token, step by step.

    python tests/bench/cold_start.py [--model smollm2-135m] [--repeat 5]

Each time `gristmill worker` starts as a new process, on Redis and a folder, where one Shard waits
for it. Medians are shown, and the quickest of all. On a busy machine threads that wait for each
other burn CPU time as well; OMP_NUM_THREADS=1 keeps it comparable.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "services")]

from pipeline import TENANT, Bench  # noqa: E402
from redis_server import RedisProcess  # noqa: E402

from gristmill.control.dispatch import dispatch  # noqa: E402
from gristmill.control.ingest import create_batch  # noqa: E402
from gristmill.local_model import find_local_model  # noqa: E402
from gristmill.models import Model  # noqa: E402
from gristmill.queues.open import open_queue  # noqa: E402
from gristmill.requests.prepare import Cursor, Window  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.types import Endpoint, Job, Prompt, Row, SamplingParams  # noqa: E402

WORKER = Path(__file__).parent / "processes" / "cold_worker.py"
Steps = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    model, _ = find_local_model(args.model, settings=Settings(), revision=None)
    redis = RedisProcess("redis6").start()
    with TemporaryDirectory() as name:
        folder = Path(name)
        # The first one fills the page cache, and compiles what this machine has not compiled yet.
        found = [measure(folder, redis.url, model, args.model) for _ in range(args.repeat + 1)]
    redis.remove()
    show(found[1:])


def measure(folder: Path, queue_url: str, model: Model, name: str) -> Steps:
    """The steps of one worker, each with its wall and CPU seconds."""
    queue_url = f"{queue_url}?prefix=cold{time.time_ns()}"
    bench = Bench(folder, batch_id=f"batch_{time.time_ns()}")
    bench.clock.now = time.time()
    bench.queue = open_queue(queue_url, bench.settings.lease_s)
    create_batch(
        bench.control,
        TENANT,
        bench.batch_id,
        model=model.pin,
        seed="seed",
        input_fingerprint="sha",
        options={},
    )
    job = Job((Row(0, "row"),), (Prompt(tuple(range(100, 116))),), SamplingParams(4))
    bench.ingest([Window(Endpoint.COMPLETIONS, (job,), (), 1, 0, Cursor(1, 1, 1))])
    assert dispatch(bench.control) == 1
    words = ["worker", "--queue", queue_url, "--store", str(folder / "store"), "--model", name]
    worker = subprocess.run(
        [sys.executable, str(WORKER), *words],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    bench.queue.close()
    bench.ledger.close()
    steps: Steps = json.loads(worker.stdout.splitlines()[-1])
    return steps


def show(found: list[Steps]) -> None:
    print(f"{'step':28} {'wall s':>8} {'CPU s':>8}")
    for step in found[0]:
        print(f"{step:28} {_line([steps[step] for steps in found])}")
    totals = [[sum(of) for of in zip(*steps.values(), strict=True)] for steps in found]
    print(f"{'all, to the first token':28} {_line(totals)}")
    wall, cpu = min(totals)
    print(f"{'the quickest':28} {wall:8.2f} {cpu:8.2f}")


def _line(pairs: Iterable[list[float]]) -> str:
    walls, cpus = zip(*pairs, strict=True)
    return f"{median(walls):8.2f} {median(cpus):8.2f}"


if __name__ == "__main__":
    main()
