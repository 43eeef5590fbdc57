"""Storms: a batch, all kinds of faults one after the other, and what the checker says of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from arena import ENDED, Arena, Nursery, wait_for
from checker import check
from local_run import make_line
from traces import Report
from weather import PLACES, Weather

LEASE_S, FLUSH_S = 2.0, 0.5
#: How long a batch may take when the storm is over.
_LULL_S = 900.0


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
        return verdict(weather.arena, undisturbed)


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
        assert now < give_up_at, f"the batch does not end\n{weather.arena.said()}"
        time.sleep(0.02)


def verdict(arena: Arena, undisturbed: Path | None) -> Report:
    """What the checker finds, if that is nothing wrong."""
    report = check(arena.evidence(undisturbed))
    if report.violations:
        print(arena.said())
    assert not report.violations, "\n".join(report.violations[:20])
    return report
