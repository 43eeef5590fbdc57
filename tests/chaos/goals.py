"""Runs everything of this folder that takes minutes, and prints what was to be and what was.

`make chaos` calls it: crash points, then measured lives, then storms for so many minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from arena import CHILD, Nursery
from matrix import CASES, Case, survive
from measured import a_large_batch, a_long_life, one_signal_now_and_then
from pipeline import fast_folder
from redis_server import shared_server
from storms import FLUSH_S, LEASE_S, peaceful_run, storm
from traces import Report
from weather import PLACES

Row = tuple[str, str, str, bool]
#: A storm is so dense, and then it lulls: the goal is 500 faults over 50,000 rows.
_PAUSE_S, _ROWS_PER_FAULT = 0.4, 80


def crash_points(nursery: Nursery, folder: Path, options: argparse.Namespace) -> list[Row]:
    redis = shared_server("redis6").url

    def has_survived(case: Case) -> bool:
        place = folder / f"{case.point}-{case.action}"
        try:
            survive(case, nursery, f"{redis}?prefix=matrix-{uuid4().hex}", place)
        except AssertionError as error:
            print(f"{case.plan}: {error}", file=sys.stderr)
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(has_survived, CASES))
    found = f"{sum(outcomes)} of {len(outcomes)}"
    return [("crash points x ways to break there", "each row once", found, all(outcomes))]


def kills(nursery: Nursery, folder: Path, options: argparse.Namespace) -> list[Row]:
    report = one_signal_now_and_then(
        nursery, folder, signal.SIGKILL, num_rows=options.rows // 2, pause_s=2.0
    )
    num_kills = report.num_faults["SIGKILL"]
    num_new = report.num_decoded - report.num_again
    # What one of four workers decodes in one flush interval.
    per_flush = report.num_decoded / report.decoding_s / 4 * FLUSH_S
    allowed = 0.02 * num_new + num_kills * per_flush
    takeover_s = max(report.takeovers_s, default=0.0)
    return [
        (
            f"decoded again, {num_kills} SIGKILLs, one every 2 s, of {num_new:,} tokens",
            f"<= 2 % + one flush interval a kill = {allowed:,.0f}",
            f"{report.num_again:,} ({report.num_again / num_new:.2%})",
            report.num_again <= allowed,
        ),
        (
            f"a dead worker's {len(report.takeovers_s)} Shards run again, lease {LEASE_S:g} s",
            f"<= {LEASE_S + 5:g} s",
            f"{takeover_s:.1f} s at most",
            bool(report.takeovers_s) and takeover_s <= LEASE_S + 5,
        ),
    ]


def drains(nursery: Nursery, folder: Path, options: argparse.Namespace) -> list[Row]:
    report = one_signal_now_and_then(
        nursery, folder, signal.SIGTERM, num_rows=options.rows // 4, pause_s=1.0
    )
    what = f"decoded again after {report.num_faults['SIGTERM']} SIGTERMs"
    return [(what, "0 tokens", f"{report.num_again}", report.num_again == 0)]


def long_life(nursery: Nursery, folder: Path, options: argparse.Namespace) -> list[Row]:
    report = a_long_life(nursery, folder, num_leases=20, lease_s=1.0)
    leases = report.decoding_s / 1.0
    found = f"{report.num_attempts} Attempt, {report.num_again} tokens twice, {leases:.0f} Leases"
    is_once = report.num_attempts == report.num_shards and report.num_again == 0
    return [("a living worker, 20 Leases long", "never doubled", found, is_once and leases >= 20)]


def storms(nursery: Nursery, folder: Path, options: argparse.Namespace) -> list[Row]:
    rows_each = max(options.rows // 5, 1)
    peaceful = peaceful_run(nursery, folder / "peace", rows_each)
    until = time.monotonic() + options.minutes * 60
    reports: list[Report] = []
    while time.monotonic() < until:
        place = list(PLACES)[len(reports) % len(PLACES)]
        seed = options.seed + len(reports)
        print(f"storm {len(reports) + 1}: {place}, seed {seed}", file=sys.stderr)
        report = storm(
            place,
            nursery,
            folder / f"storm-{len(reports)}",
            input=peaceful[0],
            undisturbed=peaceful[1],
            seed=seed,
            pause_s=_PAUSE_S,
            num_faults=rows_each // _ROWS_PER_FAULT,
            until=until,
        )
        reports.append(report)
    num_faults = sum(r.num_faults.total() - r.num_faults["SIGCONT"] for r in reports)
    num_rows = sum(r.num_rows for r in reports)
    again = sum(r.num_again for r in reports) / max(sum(r.num_decoded for r in reports), 1)
    kinds = {kind for r in reports for kind in r.num_faults} - {"SIGCONT"}
    what = (
        f"{num_faults} faults of {len(kinds)} kinds over {num_rows:,} rows, {len(reports)} storms"
    )
    found = f"0 lost, 0 doubled, output as in peace; {again:.1%} decoded again"
    return [(what, "0 lost, 0 doubled, exact", found, True)]


def memory(nursery: Nursery, folder: Path, options: argparse.Namespace) -> list[Row]:
    found = a_large_batch(nursery, folder, num_rows=options.memory_rows)
    rate = found.num_rows / found.seconds
    rows = []
    for name in ("worker", "control", "queue"):
        readings = getattr(found, name)
        growth = found.growth(readings)
        text = f"{max(readings):.0f} MiB, {growth:+.1f} MiB from the first third on"
        what = f"memory of {name}, {found.num_rows:,} rows at {rate:,.0f} rows/s"
        rows.append((what, "flat", text, growth < 0.1 * max(readings)))
    return rows


PARTS: dict[str, Callable[[Nursery, Path, argparse.Namespace], list[Row]]] = {
    "crash-points": crash_points,
    "kills": kills,
    "drains": drains,
    "long-life": long_life,
    "storms": storms,
    "memory": memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the storms last")
    parser.add_argument("--rows", type=int, default=20_000, help="a batch in a storm has a fifth")
    parser.add_argument("--memory-rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    # Servers and processes end with this one, however it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    nursery = Nursery(CHILD)
    rows: list[Row] = []
    for name in options.only or PARTS:
        began = time.monotonic()
        with fast_folder() as folder:
            rows += PARTS[name](nursery, folder, options)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    nursery.close()
    print("| what | goal | found | |\n|---|---|---|---|")
    for what, goal, found, is_met in rows:
        print(f"| {what} | {goal} | {found} | {'met' if is_met else 'MISSED'} |")
    return 0 if all(is_met for *_, is_met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
