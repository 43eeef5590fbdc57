"""One policy in one scenario, from the first arrival to the last result."""

from __future__ import annotations

from functools import partial

from gristmill.fleet import lane_of
from gristmill.queues.base import BULK_LANE
from gristmill.simulator.clock import EventClock
from gristmill.simulator.control import ControlSide
from gristmill.simulator.figures import Figures, Observer, Tally
from gristmill.simulator.lanes import Lanes
from gristmill.simulator.machine import Machine
from gristmill.simulator.policies import Policy
from gristmill.simulator.scenarios import Scenario
from gristmill.simulator.worker import Worker
from gristmill.step_speeds import StepSpeeds

#: A simulation that has not come to its end by then never will.
MAX_S = 30 * 24 * 3600.0


class Simulation:
    """`tally` has what the figures are made of, also for plots."""

    def __init__(
        self, scenario: Scenario, policy: Policy, *, observer: Observer | None = None
    ) -> None:
        self._scenario = scenario
        costs, timing = scenario.costs, scenario.timing
        self._clock = EventClock()
        self.tally = Tally(observer)
        machines = [machine for machine, count in scenario.fleet for _ in range(count)]
        queue = Lanes(machine.max_row_tokens for machine in machines)
        self.control = ControlSide(
            policy,
            seed=scenario.trace.seed,
            clock=self._clock,
            queue=queue,
            costs=costs,
            timing=timing,
            tally=self.tally,
        )
        for i, machine in enumerate(machines):
            worker = Worker(
                f"{machine.name}-{i:05}",
                machine,
                _lanes_of(machine),
                clock=self._clock,
                queue=queue,
                control=self.control,
                costs=costs,
                timing=timing,
            )
            self.control.workers.append(worker)
            self._clock.at(machine.start_s, worker.start)
        for spec in scenario.trace.batches:
            self.control.expect(spec)
        for death in scenario.deaths:
            self._clock.at(death.at, partial(self._die, self.control.workers[death.worker]))

    def run(self) -> Figures:
        """All of it; the same figures each time."""
        is_complete = self._clock.run(until=MAX_S)
        tally, workers = self.tally, self.control.workers
        first = min((b.arrives_at for b in self._scenario.trace.batches), default=0.0)
        seconds = max(tally.ended_at - first, 1e-9)
        counts = dict.fromkeys((m.name for m, count in self._scenario.fleet if count), 0)
        busy = dict.fromkeys(counts, 0.0)
        for worker in workers:
            counts[worker.machine.name] += 1
            busy[worker.machine.name] += worker.busy_s
        return Figures(
            scenario=self._scenario.name,
            policy=self.control.policy.name,
            num_rows=tally.num_rows,
            seconds=seconds,
            rows_per_s=tally.num_rows / seconds,
            wait_p50_s=tally.wait.quantile(0.5) or 0.0,
            wait_p95_s=tally.wait.quantile(0.95) or 0.0,
            wait_p95_short_s=tally.wait_short.quantile(0.95) or 0.0,
            wait_p95_long_s=tally.wait_long.quantile(0.95) or 0.0,
            turnaround_p95_s=tally.turnaround.quantile(0.95) or 0.0,
            num_due=tally.num_due,
            num_late=tally.num_late,
            busy={name: busy[name] / counts[name] / seconds for name in counts},
            control_busy=self.control.busy_s / seconds,
            rows_by_machine=dict(tally.rows_by_machine),
            num_rows_again=tally.num_rows_again,
            is_complete=is_complete and tally.num_rows == self._scenario.trace.num_rows,
        )

    def _die(self, worker: Worker) -> None:
        self.control.worker_died(worker)
        worker.die(self.control.redeliver)


def _lanes_of(machine: Machine) -> tuple[str, ...]:
    """The Lane of its pool first, then the mixed one."""
    return lane_of(machine.card("", (), StepSpeeds())), BULK_LANE
