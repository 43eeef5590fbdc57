"""Shares and deadlines over a real Ledger and queue, with workers that are arithmetic, on a clock.

    python tests/bench/fairness.py [--workers 4] [--backlog 100]

Two tenants: one has worked alone for a while with a backlog, then the other comes with one batch.
Printed are the Jain index of their finished tokens since then (1: the same for both; 0.5: one has
all), the deadlines of a third tenant, and what a round of dispatch costs by the backlog.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "integration"))

from mill import Mill, jain_index  # noqa: E402
from pipeline import Bench, fast_folder  # noqa: E402

from gristmill.control.dispatch import dispatch  # noqa: E402
from gristmill.queues.base import BULK_LANE  # noqa: E402
from gristmill.settings import Settings  # noqa: E402

_SETTINGS = Settings(shard_max_jobs=8, shard_max_tokens=4000, dispatch_window_shards=4)
_SPEED = 10_000.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--backlog", type=int, default=100, help="batches of the large tenant")
    options = parser.parse_args()
    measure_shares(options.workers, options.backlog)
    measure_deadlines(options.workers)
    for num_batches in (10, 100, 1000):
        measure_cost(num_batches)


def measure_shares(num_workers: int, backlog: int) -> None:
    with fast_folder() as folder:
        mill = Mill(Bench(folder, settings=_SETTINGS), _SPEED, num_workers)
        for i in range(backlog):
            mill.submit("large", f"large-{i:04}", num_jobs=800, due_in_s=24 * 3600)
        mill.run(10)
        mill.submit("small", "small", num_jobs=800, due_in_s=24 * 3600)
        before = mill.finished.copy()
        elapsed_s = 0
        for seconds in (10, 20, 30, 45, 60):
            mill.run(seconds - elapsed_s)
            elapsed_s = seconds
            since = mill.finished - before
            index = jain_index([since["large"], since["small"]])
            print(
                f"{seconds:3} s after the small tenant came: Jain index {index:.4f} "
                f"(large {since['large']:,} tokens, small {since['small']:,})"
            )
        mill.bench.ledger.close()


def measure_deadlines(num_workers: int) -> None:
    """A tenant with work without end, and three batches that half of the speed could not do."""
    with fast_folder() as folder:
        mill = Mill(Bench(folder, settings=_SETTINGS), _SPEED, num_workers)
        for i in range(20):
            mill.submit("patient", f"patient-{i}", num_jobs=800, due_in_s=24 * 3600)
        mill.run(20)
        due = {"first": (90, 1400), "second": (150, 900), "third": (300, 2200)}
        for name, (seconds, num_jobs) in due.items():
            mill.submit("hurried", name, num_jobs=num_jobs, due_in_s=seconds)
        began = mill.bench.clock.now
        mill.run(310)
        for name, (seconds, num_jobs) in due.items():
            batch = mill.batch("hurried", name)
            done = (
                "missed" if batch.expired_at else f"done after {batch.completed_at - began:.0f} s"
            )
            print(f"{num_jobs * 500:,} tokens due in {seconds} s at {_SPEED:,.0f} tokens/s: {done}")
        mill.bench.ledger.close()


def measure_cost(num_batches: int) -> None:
    with fast_folder() as folder:
        bench = Bench(folder, settings=_SETTINGS)
        mill = Mill(bench)
        for i in range(num_batches):
            mill.submit(f"t{i % 20}", f"b-{i:05}", num_jobs=80, prompt_tokens=4, due_in_s=86400)
        spent = []
        for _ in range(20):
            bench.clock.advance(1)
            began = time.process_time()
            num_sent = dispatch(bench.control)
            spent.append(time.process_time() - began)
            assert num_sent == 4
            bench.queue.ack(*bench.queue.receive(BULK_LANE, 99, 0))
        spent.sort()
        print(
            f"{num_batches} batches of 10 Shards, 20 tenants: a round that sends 4 Shards takes "
            f"{spent[10] * 1e3:.1f} ms of CPU (median), with a look at all deadlines "
            f"{spent[-1] * 1e3:.1f} ms"
        )
        bench.ledger.close()


if __name__ == "__main__":
    main()
