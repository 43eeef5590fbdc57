"""The Router against a plain queue on simulated fleets; scaling; what routing costs. Draws plots.

Usage: policies.py [--folder infra/router] [--rows 1000000] [--only scenarios|scaling|cost]

Each part runs in a process of its own, so that none has the memory of another in its peak.

All by the simulator (`gristmill simulate`), with the same router and dispatch rules as the service.
Scaling: equal machines, so many rows for each. Cost: CPU of routing and dispatch, in memory, for
each row, at 10,000 workers; the Ledger's own cost is measured by fairness.py and fleet_costs.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from _memory import peak_mib

from gristmill.pools import Fleet
from gristmill.simulator.backlog import Backlog
from gristmill.simulator.costs import Costs
from gristmill.simulator.machine import Machine
from gristmill.simulator.plots import draw_lines, draw_policies
from gristmill.simulator.policies import POLICIES, Policy, Room
from gristmill.simulator.report import HEADINGS, compare, rows_of
from gristmill.simulator.scenarios import BIG_GPU, CPU, SCENARIOS, SMALL_GPU, Scenario
from gristmill.simulator.shards import SimShard
from gristmill.simulator.simulate import Simulation
from gristmill.simulator.work import BatchSpec, Lengths, Row, RowKind, Trace

_SHORT = RowKind(Lengths(300, 0.5, 20, 4000), Lengths(150, 0.6, 1), 512)
_LONG = RowKind(Lengths(12_000, 0.6, 4000, 30_000), Lengths(200, 0.6, 1), 512, share=0.02)
_SIZES = (1, 10, 100, 1000)
_ROWS_EACH = 1024


class Timed:
    """A policy whose own time is added up."""

    def __init__(self, policy: Policy, *, mark_every: int) -> None:
        self.name = policy.name
        self._policy = policy
        self.cpu_s = 0.0
        self.num_rows = 0
        #: Rows, CPU seconds and the peak of memory, each time that so many rows more are sent.
        self.marks: list[tuple[int, float, float]] = []
        self._mark_every = mark_every

    def class_of(self, row: Row) -> object:
        return self._policy.class_of(row)

    def next_shards(
        self, backlog: Backlog, fleet: Fleet, room: Room, *, now: float
    ) -> Iterator[tuple[str, SimShard]]:
        shards = self._policy.next_shards(backlog, fleet, room, now=now)
        while True:
            began = time.process_time()
            found = next(shards, None)
            self.cpu_s += time.process_time() - began
            if found is None:
                return
            self.num_rows += found[1].num_jobs
            if self.num_rows >= (len(self.marks) + 1) * self._mark_every:
                self.marks.append((self.num_rows, self.cpu_s, peak_mib()))
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None, help="for plots")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("scenarios", "scaling", "cost"))
    arguments = parser.parse_args()
    parts = {
        "scenarios": lambda: scenarios(arguments.folder),
        "scaling": lambda: scaling(arguments.folder),
        "cost": lambda: cost(arguments.rows),
    }
    if arguments.only is not None:
        parts[arguments.only]()
        return
    for name in parts:
        subprocess.run([sys.executable, *sys.argv, "--only", name], check=True)


def scenarios(folder: Path | None) -> None:
    from gristmill.cli.output import print_table

    for make in SCENARIOS.values():
        scenario = make()
        outcomes = compare(scenario)
        print(f"\n{scenario.name}: {scenario.trace.about}")
        print_table(HEADINGS, rows_of(outcomes))
        if folder is not None:
            draw_policies(outcomes, folder / f"{scenario.name}.png")


def scaling(folder: Path | None) -> None:
    """Rows/s of one machine, and of more and more of them with as much work for each.

    The files have been read: how many processes that takes is reckoned from what a row costs.
    """
    points = []
    costs = Costs()
    print("\nworkers   rows/s   linear   control side busy   processes that read files")
    for num_workers in _SIZES:
        batch = BatchSpec("all", "tenant", 0.0, _ROWS_EACH * num_workers, (_SHORT,))
        about = "as much for each worker"
        trace = Trace("scaling", about, (batch,))
        read = replace(costs, ingest_row_s=0.0)
        scenario = Scenario(((SMALL_GPU, num_workers),), trace, costs=read)
        figures = Simulation(scenario, POLICIES["router"]()).run()
        points.append((num_workers, figures.rows_per_s))
        share = figures.rows_per_s / num_workers / points[0][1]
        busy = figures.control_busy
        readers = figures.rows_per_s * costs.ingest_row_s
        told = f"{num_workers:7} {figures.rows_per_s:8.1f} {share:8.2f} {busy:19.1%} {readers:9.2f}"
        print(told, flush=True)
    if folder is not None:
        shares = [(n, rate / n / points[0][1]) for n, rate in points]
        draw_lines(
            {"router": shares},
            folder / "scaling.png",
            title="rows/s for each worker, 1 = one alone",
            x="workers",
            y="share of linear",
        )


def cost(num_rows: int, num_workers: int = 10_000) -> None:
    """Three kinds of machines, four tenants; each row counts what its Shard's routing took."""
    each = num_workers // 10
    fleet: tuple[tuple[Machine, int], ...] = (
        (BIG_GPU, 2 * each),
        (SMALL_GPU, 5 * each),
        (replace(CPU, max_row_tokens=65_536), 3 * each),
    )
    short = replace(_SHORT, share=0.98)
    batches = tuple(
        BatchSpec(f"b-{i}", f"tenant-{i % 4}", 10.0 * i, num_rows // 20, (short, _LONG))
        for i in range(20)
    )
    scenario = Scenario(fleet, Trace("cost", "", batches))
    timed = Timed(POLICIES["router"](), mark_every=num_rows // 10)
    began = time.process_time()
    figures = Simulation(scenario, timed).run()
    print(
        f"\n{num_workers:,} workers, {figures.num_rows:,} rows: routing and dispatch "
        f"{timed.cpu_s / timed.num_rows * 1e6:.1f} µs of CPU for each row; peak memory "
        f"{peak_mib():.0f} MiB; all of the simulation {time.process_time() - began:.0f} s"
    )
    last_rows, last_s = 0, 0.0
    for rows, cpu_s, mib in timed.marks:
        per_row = (cpu_s - last_s) / (rows - last_rows) * 1e6
        print(f"  rows to {rows:>9,}: {per_row:.1f} µs a row, peak {mib:.0f} MiB")
        last_rows, last_s = rows, cpu_s


if __name__ == "__main__":
    main()
