"""The checker finds each fault that is planted, and nothing where none is."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from arena import ENDED, Arena, shared_nursery, wait_for
from checker import check
from local_run import make_line
from pipeline import fast_folder
from planted import FAULTS
from redis_server import shared_server

NUM_ROWS = 32


@pytest.fixture
def arena() -> Iterator[Arena]:
    queue_url = f"{shared_server('redis6').url}?prefix=test-{uuid4().hex}"
    with fast_folder() as folder:
        arena = Arena(folder / "arena", shared_nursery(), queue_url)
        arena.write(make_line(f"r{idx}") for idx in range(NUM_ROWS))
        yield arena
        arena.close()
        print(arena.said())  # shown when a test fails


def in_peace(arena: Arena, **planted: str) -> None:
    """Two workers, and nothing happens to them."""
    arena.max_num_seqs = 4  # neither has room for all
    for _ in range(2):
        arena.start_worker(planted=planted.get("worker", ""), step_s=0.02)
    wait_for("both", lambda: all("worker ready" in life.log for life in arena.workers()))
    control = arena.start_control(planted=planted.get("control", ""))
    assert control.end() in ENDED


def frozen_in_a_step(arena: Arena, **planted: str) -> None:
    """A worker is frozen for two Leases while its rows run, and another takes them over."""
    arena.step_s = 0.05
    control = arena.start_control(planted=planted.get("control", ""))
    zombie = arena.start_worker(planted=planted.get("worker", ""), step_s=0.1)
    wait_for("tokens", lambda: zombie.has_passed("decoding"))
    arena.hurt(zombie, signal.SIGSTOP)
    frozen_at = time.monotonic()
    other = arena.start_worker()
    wait_for(
        "a takeover",
        lambda: other.has_passed("opened") and time.monotonic() > frozen_at + 2 * arena.lease_s,
    )
    arena.hurt(zombie, signal.SIGCONT)
    assert control.end() in ENDED


def two_results_of_a_row(arena: Arena, **planted: str) -> None:
    """A worker is frozen before it stores its results; both theirs and another's are accepted."""
    control = arena.start_control(planted=planted.get("control", ""))
    zombie = arena.start_worker(plan="storing=freeze")
    wait_for("results", lambda: zombie.has_passed("storing"))
    arena.hurt(control, signal.SIGSTOP)
    other = arena.start_worker()
    num_shards = NUM_ROWS // arena.shard_max_jobs
    wait_for("the rest", lambda: len(_passed(other, "acked")) == num_shards)
    arena.hurt(zombie, signal.SIGCONT)
    wait_for("results too late", lambda: any(e["seq"] for e in _passed(zombie, "rang")))
    arena.hurt(control, signal.SIGCONT)
    assert control.end() in ENDED


def late_for_the_freeze(arena: Arena, **planted: str) -> None:
    """A worker is frozen before it stores its results, and stores them when the batch is over."""
    control = arena.start_control(planted=planted.get("control", ""))
    zombie = arena.start_worker(plan="storing=freeze")
    wait_for("results", lambda: zombie.has_passed("storing"))
    arena.start_worker()
    wait_for("the freeze", lambda: control.has_passed("frozen"))
    arena.hurt(zombie, signal.SIGCONT)
    assert control.end() in ENDED


def _passed(life: object, point: str) -> list[dict[str, int]]:
    return [event for event in life.events() if event["e"] == point]  # type: ignore[attr-defined]


#: By planted fault: in what it shows, and the rule that it breaks.
PLANTED: dict[str, tuple[Callable[..., None], str]] = {
    "acks before storing": (in_peace, "store, then ring, then ack"),
    "skips fencing": (frozen_in_a_step, "a worker fences itself"),
    "ignores acceptance order": (two_results_of_a_row, "a row counts from the first accepted"),
    "reuses an attempt id": (in_peace, "an Attempt's id is never used again"),
    "accepts after the freeze": (late_for_the_freeze, "nothing is accepted after the freeze"),
}


def test_each_planted_fault_is_tried() -> None:
    assert PLANTED.keys() == FAULTS.keys()


@pytest.mark.parametrize("fault", PLANTED)
def test_the_checker_finds_a_planted_fault(fault: str, arena: Arena) -> None:
    scenario, rule = PLANTED[fault]
    side, _ = FAULTS[fault]

    scenario(arena, **{side: fault})

    violations = check(arena.evidence()).violations
    assert any(violation.startswith(rule) for violation in violations), violations


@pytest.mark.slow
@pytest.mark.parametrize("scenario", dict.fromkeys(scenario for scenario, _ in PLANTED.values()))
def test_the_checker_finds_nothing_where_none_is_planted(
    scenario: Callable[..., None], arena: Arena
) -> None:
    undisturbed = arena.run_undisturbed()

    scenario(arena)

    assert check(arena.evidence(undisturbed)).violations == []
