"""Memory of worker, control side and queue over a large scripted batch: it has to stay flat.

Usage: million_rows.py [--rows 1000000] [--folder FOLDER]

`gristmill run` reads a file of so many rows of at most 10 tokens and leaves them to one worker
process behind Redis, whose Engine is scripted (the real Scheduler, no weights). A line for each
tenth: rows/s since the last one and what each process holds. A million rows need about 6 GB of
disk in FOLDER (default: the folder for temporary files).
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("chaos", "integration", "services")]

from arena import CHILD, ENDED, Arena, Nursery  # noqa: E402
from local_run import make_line  # noqa: E402
from measured import rss_mib  # noqa: E402
from redis_server import RedisProcess  # noqa: E402

_LOOK_S = 0.5


def count_done(ledger: Path) -> int:
    """Rows that have a result, as the Ledger of the run says."""
    try:
        connection = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=30)
        with closing(connection):
            found = connection.execute("select completed + failed from batches").fetchone()
    except sqlite3.OperationalError:  # it is just being made, or removed
        return 0
    return int(found[0]) if found else 0


@dataclass(frozen=True)
class Reading:
    num_done: int
    seconds: float
    worker_mib: float
    control_mib: float
    queue_mib: float


def readings(arena: Arena, server: RedisProcess, num_rows: int) -> Iterator[Reading]:
    """One at each tenth of the rows."""
    control, worker = arena.start_control(), arena.start_worker()
    ledger = arena.folder / "out.jsonl.work" / "ledger.sqlite"
    began, num_tenths = time.monotonic(), 0
    while num_tenths < 10 and control.is_alive:
        time.sleep(_LOOK_S)
        assert worker.is_alive, arena.said()
        num_done = count_done(ledger)
        if 10 * num_done >= (num_tenths + 1) * num_rows:
            num_tenths = 10 * num_done // num_rows
            with server.client as client:
                queue_mib = client.info("memory")["used_memory"] / 2**20
            seconds = time.monotonic() - began
            yield Reading(num_done, seconds, rss_mib(worker), rss_mib(control), queue_mib)
    assert control.end(patience_s=3600.0) in ENDED, arena.said()


def show(reading: Reading, last: Reading) -> None:
    rate = (reading.num_done - last.num_done) / (reading.seconds - last.seconds)
    print(
        f"{reading.num_done:>11,} {rate:>8,.0f} {reading.worker_mib:>11.0f} "
        f"{reading.control_mib:>12.0f} {reading.queue_mib:>10.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args()
    nursery, server = Nursery(CHILD), RedisProcess("redis6").start()
    try:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            arena = Arena(
                Path(name), nursery, server.url, lease_s=60.0, flush_s=5.0, keeps_history=False
            )
            arena.max_num_seqs, arena.shard_max_jobs = 256, 256
            arena.write(make_line(f"r{idx}", max_tokens=10) for idx in range(arguments.rows))
            began, last = time.monotonic(), Reading(0, 0.0, 0.0, 0.0, 0.0)
            print("       rows   rows/s  worker MiB  control MiB  Redis MiB")
            for reading in readings(arena, server, arguments.rows):
                show(reading, last)
                last = reading
            seconds = time.monotonic() - began
            print(f"{arguments.rows:,} rows in {seconds:,.0f} s, from the file to the files")
            arena.close()
    finally:
        server.remove()
        nursery.close()


if __name__ == "__main__":
    main()
