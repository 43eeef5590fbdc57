"""Figures as a table for people, and what a policy gains over a plain queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gristmill.simulator.figures import Figures
from gristmill.simulator.policies import POLICIES
from gristmill.simulator.scenarios import Scenario
from gristmill.simulator.simulate import Simulation

#: What the others are compared with.
BASE = "fifo"
HEADINGS = (
    *("policy", "rows/s", "gain", "wait p50", "wait p95", "of short", "of long", "late"),
    *("busy", "control"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one policy; `course` has the rows done by INTERVAL_S of figures.py."""

    figures: Figures
    course: tuple[int, ...]


def compare(scenario: Scenario, policies: Iterable[str] = tuple(POLICIES)) -> list[Outcome]:
    """The policies in one scenario, each from the start."""
    outcomes = []
    for name in policies:
        simulation = Simulation(scenario, POLICIES[name]())
        figures = simulation.run()
        counts = simulation.tally.course
        course = tuple(counts[i] for i in range(max(counts, default=-1) + 1))
        outcomes.append(Outcome(figures, course))
    return outcomes


def rows_of(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """The lines under HEADINGS."""
    base = next((o.figures for o in outcomes if o.figures.policy == BASE), None)
    return [_line(outcome.figures, base) for outcome in outcomes]


def _line(figures: Figures, base: Figures | None) -> list[str]:
    gain = "" if base is None else f"{figures.rows_per_s / base.rows_per_s:.2f}"
    busy = " ".join(f"{name} {share:.0%}" for name, share in figures.busy.items())
    return [
        figures.policy + ("" if figures.is_complete else " (not all done)"),
        f"{figures.rows_per_s:.2f}",
        gain,
        *(_seconds(s) for s in (figures.wait_p50_s, figures.wait_p95_s)),
        *(_seconds(s) for s in (figures.wait_p95_short_s, figures.wait_p95_long_s)),
        f"{figures.num_late}/{figures.num_due}" if figures.num_due else "",
        busy,
        f"{figures.control_busy:.1%}",
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2f} s"
