"""One small batch for each crash point and each way to break there; it must end all the same."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from arena import ENDED, Arena, Life, Nursery, wait_for
from checker import check
from local_run import make_line
from traces import Report

from gristmill.crash_points import ACTIONS, CONTROL_POINTS, WORKER_POINTS

LEASE_S = 1.0
#: What every worker of the batch meets when it is told to stop.
_AFTER_SIGTERM = ("releasing", "released")
#: Every eighth row is refused while the file is read.
LINES = [make_line(f"r{idx}", **({"best_of": 3} if idx % 8 == 3 else {})) for idx in range(32)]


@dataclass(frozen=True)
class Case:
    side: str
    point: str
    action: str
    nth: int = 1

    @property
    def plan(self) -> str:
        return f"{self.point}={self.action}:{self.nth}"


CASES = [
    Case(side, point, action)
    for side, points in (("worker", WORKER_POINTS), ("control", CONTROL_POINTS))
    for point in points
    for action in ACTIONS
]


def survive(case: Case, nursery: Nursery, queue_url: str, folder: Path) -> Report:
    """Break one process at the point, go on as a supervisor would, and check what is left."""
    arena = Arena(folder, nursery, queue_url, lease_s=LEASE_S, step_s=0.02, max_num_seqs=8)
    arena.settings = {"watchdog_s": 2.0}
    arena.write(LINES)
    try:
        undisturbed = arena.run_undisturbed()
        _live_through(arena, case)
        report = check(arena.evidence(undisturbed))
        assert not report.violations, report.violations
        return report
    except BaseException:
        print(arena.said())
        raise
    finally:
        arena.close()


def _live_through(arena: Arena, case: Case) -> None:
    is_worker = case.side == "worker"
    control = arena.start_control(plan="" if is_worker else case.plan)
    worker = arena.start_worker(plan=case.plan if is_worker else "")
    victim = worker if is_worker else control
    if case.point in _AFTER_SIGTERM:
        wait_for("an Attempt", lambda: worker.has_passed("opened"))
        arena.hurt(worker, signal.SIGTERM)
    wait_for(case.plan, lambda: victim.has_passed(case.point) or not victim.is_alive)
    began = time.monotonic()
    if is_worker:
        arena.start_worker()

    def has_ended() -> bool:
        nonlocal control
        _look_after(arena, victim, case, began)
        if control.exit_code in ENDED:
            return True
        if not control.is_alive:
            control = arena.start_control()
        return False

    wait_for("the end of the batch", has_ended)


def _look_after(arena: Arena, victim: Life, case: Case, began: float) -> None:
    """What a supervisor does, or time."""
    waited_s = time.monotonic() - began
    if case.action == "freeze" and not victim.is_frozen and waited_s > 2 * LEASE_S:
        victim.is_frozen = True  # once is enough
        if victim.is_alive:
            arena.hurt(victim, signal.SIGCONT)
    if case.action == "hang" and case.side == "control" and victim.is_alive and waited_s > LEASE_S:
        arena.hurt(victim, signal.SIGKILL)
        wait_for("its end", lambda: not victim.is_alive)
