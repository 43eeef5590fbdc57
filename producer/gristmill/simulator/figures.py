"""What a simulation found: counted while it runs, in memory that does not grow with the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gristmill.histogram import Histogram
from gristmill.simulator.engine import Sequence
from gristmill.simulator.shards import SimShard
from gristmill.simulator.work import BatchSpec
from gristmill.simulator.worker import Worker

#: Prompts up to this many tokens are short, in the figures.
LONG_PROMPT = 4096
#: Rows are counted by intervals of so many seconds, for plots.
INTERVAL_S = 10.0

#: Hears of each row that is done: the batch, the row, the Worker that did it.
Observer = Callable[[BatchSpec, Sequence, Worker], None]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy in one scenario. Seconds; quantiles are within 5 %, as Histogram has them.

    A row waits from the arrival of its batch until an engine begins with it. `seconds` goes from
    the first arrival until the last result is accepted. `num_late` batches of the `num_due` with a
    deadline came after it. `busy` is the share of that time in which machines of a kind computed.
    """

    scenario: str
    policy: str
    num_rows: int
    seconds: float
    rows_per_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p95_short_s: float
    wait_p95_long_s: float
    turnaround_p95_s: float
    num_due: int
    num_late: int
    busy: dict[str, float]
    control_busy: float
    #: Rows done by each kind of machine.
    rows_by_machine: dict[str, int]
    #: Rows that were computed more than once, since their worker died.
    num_rows_again: int
    #: False: time was up before all rows were done.
    is_complete: bool = True


@dataclass(slots=True)
class Tally:
    observer: Observer | None = None
    num_rows: int = 0
    num_due: int = 0
    num_late: int = 0
    num_rows_again: int = 0
    wait: Histogram = field(default_factory=Histogram)
    wait_short: Histogram = field(default_factory=Histogram)
    wait_long: Histogram = field(default_factory=Histogram)
    turnaround: Histogram = field(default_factory=Histogram)
    rows_by_machine: Counter[str] = field(default_factory=Counter)
    #: By interval, rows that were done in it.
    course: Counter[int] = field(default_factory=Counter)
    ended_at: float = 0.0

    def rows_done(self, worker: Worker, shard: SimShard, seqs: list[Sequence]) -> None:
        """These have a result that counts."""
        batch = shard.batch
        self.num_rows += len(seqs)
        self.num_rows_again += len(seqs) if shard.num_attempts > 1 else 0
        self.rows_by_machine[worker.machine.name] += len(seqs)
        for seq in seqs:
            waited_s = seq.begun_at - batch.arrives_at
            self.wait.add(waited_s)
            is_long = seq.row.prompt_tokens > LONG_PROMPT
            (self.wait_long if is_long else self.wait_short).add(waited_s)
            self.turnaround.add(seq.finished_at - batch.arrives_at)
            self.course[int(seq.finished_at / INTERVAL_S)] += 1
            if self.observer is not None:
                self.observer(batch, seq, worker)

    def batch_done(self, batch: BatchSpec, now: float) -> None:
        if batch.due_in_s is not None:
            self.num_due += 1
            self.num_late += now > batch.due_at

    def control_busy_until(self, at: float) -> None:
        """The control side has accepted all that it had heard of by then."""
        self.ended_at = at
