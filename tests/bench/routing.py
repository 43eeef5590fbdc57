"""What routing and dispatch cost: a real Ledger (SQLite), many workers, many rows, many Lanes.

    python tests/bench/routing.py [--workers 10000] [--rows 5000000]

Each round sends what the windows have room for, as `gristmill control` does; the queue is in
memory, and takes everything at once. Printed are microseconds of CPU for each row that was sent, by
the rows that wait, with the look at the fleet and at all deadlines in it; and the peak of memory.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "integration"))

from pipeline import PIN, Bench, fast_folder  # noqa: E402

from gristmill.control.dispatch import dispatch  # noqa: E402
from gristmill.fleet import (  # noqa: E402
    PREFILL_LENGTHS,
    WorkerBeat,
    WorkerCard,
    WorkerState,
    lane_of,
)
from gristmill.ledger import batches, shards, workers  # noqa: E402
from gristmill.ledger.batch import Submission  # noqa: E402
from gristmill.ledger.schema import batches as batches_table  # noqa: E402
from gristmill.ledger.shards import NewShard  # noqa: E402
from gristmill.queues.base import BULK_LANE  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.types import Endpoint  # noqa: E402

_ROWS_PER_SHARD = 256
_NUM_TENANTS = 20
_LIMITS = (2048, 8192, 32768, 131072)
_FEATURES = (("generate", "logprobs"), ("generate", "grammar", "logprobs"))
#: (rows up to, prompts up to): what batches are made of.
_SIZES = ((1024, 1024), (2048, 1024), (8192, 4096), (32768, 16384))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    for num_rows in (options.rows // 100, options.rows // 10, options.rows):
        measure(options.workers, num_rows, options.rounds)


def measure(num_workers: int, num_rows: int, num_rounds: int) -> None:
    with fast_folder() as folder:
        bench = Bench(folder, settings=Settings())
        lanes = put_workers(bench, num_workers)
        put_batches(bench, num_rows)
        control = bench.control
        spent, num_sent = [], 0
        for _ in range(num_rounds):
            bench.clock.advance(1)
            began = time.process_time()
            num_sent += dispatch(control)
            spent.append(time.process_time() - began)
            for lane in (BULK_LANE, *lanes):
                while leases := bench.queue.receive(lane, 100, 0):
                    bench.queue.ack(*leases)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        per_row = sum(spent) / (num_sent * _ROWS_PER_SHARD) * 1e6
        print(
            f"{num_workers:,} workers in {len(lanes)} pools, {num_rows:,} rows: "
            f"{per_row:.2f} us of CPU per row ({num_sent:,} Shards in {num_rounds} rounds, "
            f"a round {sorted(spent)[num_rounds // 2] * 1e3:.0f} ms in the middle, "
            f"{max(spent) * 1e3:.0f} ms at most), peak {peak:.0f} MiB",
            flush=True,
        )
        bench.ledger.close()


def put_workers(bench: Bench, num_workers: int) -> set[str]:
    """Their Lanes; limits, features and speeds differ."""
    rng = random.Random(1)
    kinds = list(itertools.product(_LIMITS, _FEATURES))
    lanes = set()
    with bench.ledger.write() as conn:
        for i in range(num_workers):
            limit, features = kinds[i % len(kinds)]
            speed = rng.uniform(0.5, 2.0) * (1 + i % len(kinds))
            card = WorkerCard(
                *(f"wrk-{i:05}", f"host-{i}", PIN, "cuda", limit, 64),
                features=features,
                prefill_tokens_per_s=tuple((n, 5000 * speed) for n in PREFILL_LENGTHS[:4]),
                decode_tokens_per_s=800 * speed,
            )
            card = replace(card, lanes=(lane_of(card), BULK_LANE))
            lanes.add(card.lanes[0])
            beat = WorkerBeat(card, 0, WorkerState.READY, bench.clock())
            # Heard of just as often as in a fleet that lives as long as this takes.
            workers.put_beat(conn, beat, now=bench.control.now)
    return lanes


def put_batches(bench: Bench, num_rows: int) -> None:
    """Of a hundred batches or so, each with Shards of several size classes."""
    num_shards = max(num_rows // _ROWS_PER_SHARD, 100)
    num_batches = min(200, num_shards // 20)
    per_batch = num_shards // num_batches
    with bench.ledger.write() as conn:
        for i in range(num_batches):
            tenant_id, batch_id = f"tenant-{i % _NUM_TENANTS}", f"batch-{i:04}"
            batches.create(
                conn,
                tenant_id,
                batch_id,
                run_id="run-1",
                model=PIN,
                seed=batch_id,
                input_fingerprint="sha",
                options={},
                created_at=bench.control.now,
                expires_at=bench.control.now + 24 * 3600,
                submission=Submission(Endpoint.CHAT, "file-1", "24h"),
            )
            new = [new_shard(n) for n in range(per_batch)]
            shards.add(conn, tenant_id, batch_id, 0, new)
            conn.execute(
                batches_table.update()
                .where(batches_table.c.id == batch_id)
                .values(
                    status="in_progress",
                    in_progress_at=bench.control.now,
                    total=per_batch * _ROWS_PER_SHARD,
                    expected_tokens=sum(shard.num_expected_tokens for shard in new),
                    num_slices=1,
                    num_shards=per_batch,
                )
            )


def new_shard(n: int) -> NewShard:
    row, prompt = _SIZES[n % len(_SIZES)]
    features = "generate+grammar" if n % 8 == 7 else "generate"
    return NewShard(
        n,
        _ROWS_PER_SHARD,
        _ROWS_PER_SHARD,
        num_prompt_tokens=40_000,
        num_expected_tokens=60_000,
        size_class=f"{row}/{prompt}/{features}",
        max_row_tokens=row - n % 100,
        least_row_tokens=prompt - n % 100,
    )


if __name__ == "__main__":
    main()
