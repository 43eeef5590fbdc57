"""Storms and measured lives: a batch under one kind of trouble, and what the checker says."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from arena import ENDED, Arena, Nursery, wait_for
from checker import Report, check
from local_run import make_line
from redis_server import shared_server
from weather import NUM_WORKERS, PLACES, Weather

LEASE_S, FLUSH_S = 2.0, 0.5
#: How long a batch may take when the storm is over.
_LULL_S = 300.0


def lines(num_rows: int) -> Iterator[str]:
    """Rows of up to 20 tokens; one of fifty is refused while the file is read."""
    for idx in range(num_rows):
        yield make_line(f"r{idx}", **({"best_of": 3} if idx % 50 == 49 else {}))


def peaceful_run(nursery: Nursery, folder: Path, num_rows: int) -> tuple[Path, Path]:
    """An input, and its output in one process to which nothing happens."""
    arena = Arena(folder, nursery, "memory://", lease_s=LEASE_S, max_num_seqs=256)
    arena.shard_max_jobs = 256
    arena.write(lines(num_rows))
    return arena.input, arena.run_undisturbed()


def storm(
    place: str,
    nursery: Nursery,
    folder: Path,
    *,
    input: Path,
    undisturbed: Path,
    seed: int,
    pause_s: float,
    num_faults: int,
    step_s: float = 0.02,
    until: float = float("inf"),
) -> Report:
    """Faults of all kinds, one after each pause, until so many or `until`; then the lull."""
    options = {"lease_s": LEASE_S, "flush_s": FLUSH_S, "step_s": step_s, "max_num_seqs": 32}
    enter = PLACES[place](folder, nursery, seed=seed, input=input, shard_max_jobs=64, **options)
    with enter as weather:
        _blow(weather, pause_s=pause_s, num_faults=num_faults, until=until)
        return _verdict(weather.arena, undisturbed)


def _blow(weather: Weather, *, pause_s: float, num_faults: int, until: float) -> None:
    weather.tend()
    wait_for("work", lambda: any(life.has_passed("decoding") for life in weather.arena.lives))
    strike_at, give_up_at = time.monotonic(), float("inf")
    while weather.control.exit_code not in ENDED:
        now = time.monotonic()
        weather.tend()
        if num_faults and now < until:
            if now >= strike_at:
                weather.strike()
                strike_at = now + weather.rng.uniform(0.5, 1.5) * pause_s
                num_faults -= 1
        elif give_up_at == float("inf"):
            weather.calm()
            give_up_at = now + _LULL_S
        assert now < give_up_at, "the batch does not end"
        time.sleep(0.02)


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
    queue_url = f"{shared_server('redis6').url}?prefix=storm-{uuid4().hex}"
    arena = Arena(folder, nursery, queue_url, lease_s=LEASE_S, flush_s=FLUSH_S, step_s=step_s)
    arena.max_num_seqs, arena.shard_max_jobs = 32, 32
    arena.write(lines(num_rows))
    weather = Weather(arena, random.Random(1), arena.start_control())
    try:
        weather.tend()
        strike_at = time.monotonic() + 2 * pause_s
        while weather.control.exit_code not in ENDED:
            weather.tend()
            if time.monotonic() >= strike_at:
                weather.strike(number.name)
                strike_at += pause_s
            time.sleep(0.02)
        return _verdict(arena, None)
    finally:
        arena.close()


def a_long_life(nursery: Nursery, folder: Path, *, num_leases: int, lease_s: float = 1.0) -> Report:
    """A worker whose Shard takes many Leases, each step longer than one; others stand by."""
    queue_url = f"{shared_server('redis6').url}?prefix=storm-{uuid4().hex}"
    arena = Arena(folder, nursery, queue_url, lease_s=lease_s, step_s=1.1 * lease_s)
    arena.write(make_line(f"r{idx}", max_tokens=num_leases) for idx in range(8))
    control = arena.start_control()
    try:
        for _ in range(3):
            arena.start_worker()
        assert control.end() in ENDED
        return _verdict(arena, None)
    finally:
        arena.close()


def _verdict(arena: Arena, undisturbed: Path | None) -> Report:
    report = check(arena.evidence(undisturbed))
    if report.violations:
        print(arena.said())
    assert not report.violations, "\n".join(report.violations[:20])
    return report


assert NUM_WORKERS == 4, "the goals speak of four workers"
