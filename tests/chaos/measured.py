"""Lives under one kind of trouble, measured: kills now and then, a long Shard, a large batch."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from uuid import uuid4

from arena import ENDED, Arena, Life, Nursery
from local_run import make_line
from redis_server import RedisProcess, shared_server
from storms import FLUSH_S, LEASE_S, lines, verdict
from traces import Report
from weather import Weather


def one_signal_now_and_then(
    nursery: Nursery,
    folder: Path,
    number: signal.Signals,
    *,
    num_rows: int,
    pause_s: float,
    step_s: float = 0.02,
) -> Report:
    """Four workers, of which one gets a signal after each pause; another takes its place."""
    with _arena(folder, nursery, lease_s=LEASE_S, flush_s=FLUSH_S, step_s=step_s) as arena:
        arena.max_num_seqs, arena.shard_max_jobs = 32, 32
        arena.write(lines(num_rows))
        weather = Weather(arena, random.Random(1), arena.start_control())
        weather.tend()
        strike_at = time.monotonic() + 2 * pause_s
        while weather.control.exit_code not in ENDED:
            weather.tend()
            if time.monotonic() >= strike_at:
                weather.strike(number.name)
                strike_at += pause_s
            time.sleep(0.02)
        return verdict(arena, None)


def a_long_life(nursery: Nursery, folder: Path, *, num_leases: int, lease_s: float) -> Report:
    """A Shard that takes many Leases, each step longer than one; other workers stand by."""
    with _arena(folder, nursery, lease_s=lease_s, step_s=1.1 * lease_s) as arena:
        # Sixteen tokens and more for each of eight rows that run together.
        arena.write(make_line(f"r{idx}", max_tokens=num_leases) for idx in range(8))
        control = arena.start_control()
        for _ in range(3):
            arena.start_worker()
        assert control.end() in ENDED
        return verdict(arena, None)


@dataclass
class Memory:
    """MiB of the worker, the control process and the queue, one reading for each look."""

    num_rows: int
    seconds: float = 0.0
    worker: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)

    @staticmethod
    def growth(readings: list[float]) -> float:
        """How much more it is in the last third than in the first, when all is warm: by medians,
        since what lies on a queue of a few hundred kilobytes comes and goes by a tenth."""
        third = len(readings) // 3
        return median(readings[2 * third :]) - median(readings[third // 2 : third])


def a_large_batch(nursery: Nursery, folder: Path, *, num_rows: int) -> Memory:
    """One worker, rows of at most 10 tokens, no faults."""
    server = RedisProcess("redis6").start()
    memory = Memory(num_rows)
    try:
        arena = Arena(folder, nursery, server.url, lease_s=60.0, flush_s=5.0, keeps_history=False)
        arena.max_num_seqs, arena.shard_max_jobs = 256, 256
        arena.write(make_line(f"r{idx}", max_tokens=10) for idx in range(num_rows))
        began = time.monotonic()
        control, worker = arena.start_control(), arena.start_worker()
        while control.is_alive:
            time.sleep(0.5)
            if control.is_alive and worker.is_alive:
                memory.worker.append(rss_mib(worker))
                memory.control.append(rss_mib(control))
                with server.client as client:
                    memory.queue.append(client.info("memory")["used_memory"] / 2**20)
        memory.seconds = time.monotonic() - began
        assert control.exit_code in ENDED, arena.said()
        arena.close()
    finally:
        server.remove()
    return memory


@contextmanager
def _arena(folder: Path, nursery: Nursery, **options: float) -> Iterator[Arena]:
    queue_url = f"{shared_server('redis6').url}?prefix=storm-{uuid4().hex}"
    arena = Arena(folder, nursery, queue_url, **options)  # type: ignore[arg-type]
    try:
        yield arena
    finally:
        arena.close()


def rss_mib(life: Life) -> float:
    """What a process holds; 0 when it has just ended."""
    try:
        status = Path(f"/proc/{life.pid}/status").read_text()
    except FileNotFoundError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0
