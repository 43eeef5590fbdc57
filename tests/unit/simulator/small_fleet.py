"""Machines and scenarios that are small enough to be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gristmill.simulator.costs import Costs, Timing
from gristmill.simulator.figures import Figures
from gristmill.simulator.machine import Machine
from gristmill.simulator.policies import POLICIES
from gristmill.simulator.scenarios import Death, Scenario
from gristmill.simulator.simulate import Simulation
from gristmill.simulator.work import BatchSpec, Lengths, RowKind, Trace

FREE = Costs(
    **dict.fromkeys(
        (
            *("ingest_row_s", "dispatch_round_s", "dispatch_shard_s", "accept_round_s"),
            *(
                "accept_segment_s",
                "accept_row_s",
                "wake_s",
                "fetch_s",
                "open_s",
                "close_s",
                "turn_s",
            ),
        ),
        0.0,
    )
)
#: Prefills 1000 tokens a second; a step with decoding rows takes 0.1 s, however many there are.
MACHINE = Machine(
    "machine",
    max_row_tokens=4096,
    max_num_seqs=2,
    kv_tokens=4096,
    prefill_tokens_per_s=((2048, 1000.0),),
    decode_tokens_per_s=20.0,
    max_num_batched_tokens=100,
)
SHORT = RowKind(Lengths(40, 0.8, 1, 400), Lengths(8, 0.8, 1), 32)
LONG = RowKind(Lengths(900, 0.5, 400, 1500), Lengths(8, 0.8, 1), 32)


def batch(name: str = "batch", *, num_rows: int = 10, at: float = 0.0, **more: Any) -> BatchSpec:
    kinds = more.pop("kinds", (SHORT,))
    return BatchSpec(name, more.pop("tenant", "tenant"), at, num_rows, kinds, **more)


def scenario(
    *batches: BatchSpec,
    fleet: tuple[tuple[Machine, int], ...] = ((MACHINE, 1),),
    deaths: tuple[Death, ...] = (),
    seed: int = 1,
    costs: Costs = FREE,
    **timing: Any,
) -> Scenario:
    settings = replace(Timing(lease_s=8.0, flush_interval_s=1.0), **timing)
    return Scenario(fleet, Trace("test", "", batches, seed), deaths, settings, costs)


def simulate(made: Scenario, policy: str = "router", **more: Any) -> Figures:
    return Simulation(made, POLICIES[policy](), **more).run()
