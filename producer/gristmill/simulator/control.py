"""The simulated control side: one process that reads, dispatches and accepts, at measured costs."""

from __future__ import annotations

from functools import partial

from gristmill.fleet import BEAT_EVERY_S, KnownWorker, WorkerBeat, WorkerState
from gristmill.pools import Fleet, fleet_of
from gristmill.queues.base import BULK_LANE
from gristmill.simulator.backlog import Backlog, SimBatch
from gristmill.simulator.clock import EventClock
from gristmill.simulator.costs import MAX_SEGMENTS, Costs, Timing
from gristmill.simulator.engine import Sequence
from gristmill.simulator.figures import Tally
from gristmill.simulator.lanes import Lanes
from gristmill.simulator.policies import Policy
from gristmill.simulator.shards import SimShard, cut
from gristmill.simulator.work import BatchSpec
from gristmill.simulator.worker import Attempt, Worker

#: How old the known fleet may be when a turn begins, in seconds.
_FLEET_AGE_S = 2.0
#: As in control/dispatch.py: for so many Workers one more Shard is kept waiting on a Lane.
_LISTENERS_PER_SHARD = 16


class ControlSide:
    """What it does takes its time, and nothing else happens in it meanwhile: `busy_s` in all."""

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int,
        clock: EventClock,
        queue: Lanes,
        costs: Costs,
        timing: Timing,
        tally: Tally,
    ) -> None:
        self.policy = policy
        self._seed = seed
        self._clock = clock
        self._queue = queue
        self._costs = costs
        self._timing = timing
        self._tally = tally
        self.workers: list[Worker] = []
        self.backlog = Backlog(max_shard_tokens=timing.shard_max_tokens)
        self.busy_s = 0.0
        self._busy_until = self._reads_until = 0.0
        self._turn_at: float | None = None
        self._has_news = False
        #: What waits to be accepted.
        self._num_segments = self._num_rows = self._num_tokens = 0
        self._died_at: dict[Worker, float] = {}
        self._known_workers: dict[Worker, KnownWorker] = {}
        self._fleet = Fleet()
        self._fleet_at = float("-inf")

    def expect(self, spec: BatchSpec) -> None:
        """The batch will be submitted at its time."""
        self._clock.at(spec.arrives_at, partial(self._submitted, spec))

    def _submitted(self, spec: BatchSpec) -> None:
        """Files are read one after the other, by a process of their own."""
        begins_at = max(self._clock.now, self._reads_until)
        self._reads_until = begins_at + spec.num_rows * self._costs.ingest_row_s
        self._clock.at(self._reads_until, partial(self._read, spec))

    def _read(self, spec: BatchSpec) -> None:
        timing = self._timing
        windows = cut(
            spec,
            self._seed,
            self.policy.class_of,
            max_jobs=timing.shard_max_jobs,
            max_tokens=timing.shard_max_tokens,
            max_row_tokens=max(worker.machine.max_row_tokens for worker in self.workers),
        )
        self.backlog.add(SimBatch(spec, windows))
        self._wake(0.0)

    def hear_opened(self, worker: Worker, shard: SimShard) -> None:
        self._num_segments += 1
        self._wake(0.0)

    def hear_closed(self, worker: Worker, attempt: Attempt, num_segments: int) -> None:
        # The open mark was heard of before.
        self._num_segments += num_segments - 1
        self._store(worker, attempt.shard, attempt.seqs)

    def hear_stored(self, worker: Worker, shard: SimShard, rows: list[Sequence]) -> None:
        self.backlog.rows_lost(shard)
        self._store(worker, shard, rows)

    def row_finished(self, shard: SimShard) -> None:
        self.backlog.row_finished(shard)

    def message_taken(self) -> None:
        self._wake(self._costs.look_every_s)

    def worker_died(self, worker: Worker) -> None:
        self._died_at[worker] = self._clock.now

    def redeliver(self, shard: SimShard, at: float) -> None:
        """A Lease will have ended then, and the message is seen again where it was."""
        self._clock.at(at, partial(self._seen_again, shard))

    def _seen_again(self, shard: SimShard) -> None:
        if not shard.num_left:
            return  # all of it had been stored
        self._queue.send(shard.lane, shard)
        self._wake(0.0)

    def _store(self, worker: Worker, shard: SimShard, seqs: list[Sequence]) -> None:
        if not seqs:
            return
        num_tokens = sum(seq.row.prompt_tokens + seq.row.output_tokens for seq in seqs)
        self._num_rows += len(seqs)
        self._num_tokens += num_tokens
        self._tally.rows_done(worker, shard, seqs)
        if self.backlog.rows_stored(shard, len(seqs), num_tokens):
            self._tally.batch_done(shard.batch, self._clock.now)
        self._wake(0.0)

    def _wake(self, wait_s: float) -> None:
        """Something has changed: a turn after so long, unless one comes sooner."""
        self._has_news = True
        self._ask_for_turn(wait_s)

    def _ask_for_turn(self, wait_s: float) -> None:
        at = max(self._clock.now + wait_s, self._busy_until)
        if self._turn_at is None or at < self._turn_at:
            self._turn_at = at
            self._clock.at(at, partial(self._turn, at))

    def _turn(self, asked_for: float) -> None:
        if self._turn_at != asked_for:
            return  # another one came sooner
        self._turn_at = None
        now, costs = self._clock.now, self._costs
        spent_s = self._accept(now)
        # Where nothing has changed, a round would send nothing again.
        is_old = now - self._fleet_at >= _FLEET_AGE_S
        # Looked at also when nothing waits: what was sent to a pool that has died waits again.
        fleet = self._known_fleet(now)
        if (self._has_news or is_old) and any(True for _ in self.backlog.waiting()):
            self._has_news = False
            spent_s += costs.dispatch_round_s
            self.backlog.cut_ahead(self._window(fleet.num_workers))
            for lane, shard in self.policy.next_shards(self.backlog, fleet, self._room, now=now):
                self._has_news = True
                spent_s += costs.dispatch_shard_s
                self._clock.at(now + spent_s, partial(self._queue.send, lane, shard))
        self.busy_s += spent_s
        self._busy_until = now + spent_s
        self._tally.control_busy_until(self._busy_until)
        if self.backlog.num_batches and len(self._died_at) < len(self.workers):
            # For what no Bell tells of: a pool that has died.
            self._ask_for_turn(max(costs.look_every_s, spent_s))

    def _accept(self, now: float) -> float:
        """Take all that waits; how long that takes."""
        costs = self._costs
        spent_s = (
            -(-self._num_segments // MAX_SEGMENTS) * costs.accept_round_s
            + self._num_segments * costs.accept_segment_s
            + self._num_rows * costs.accept_row_s
        )
        if self._num_tokens:
            self.backlog.pace.record(self._num_tokens, now=now)
        self._num_segments = self._num_rows = self._num_tokens = 0
        return spent_s

    def _room(self, lane: str, num_listeners: int) -> int:
        return self._window(num_listeners) - self._queue.visible(lane)

    def _window(self, num_listeners: int) -> int:
        """As in control/dispatch.py: more where many take from it."""
        return max(self._timing.dispatch_window_shards, num_listeners // _LISTENERS_PER_SHARD)

    def _known_fleet(self, now: float) -> Fleet:
        if now - self._fleet_at >= _FLEET_AGE_S:
            self._fleet_at = now
            self._fleet = fleet_of(map(self._known, self.workers), now)
            self._recall(now)
        return self._fleet

    def _known(self, worker: Worker) -> KnownWorker:
        """As its newest beat told; one comes at each change of its state, too."""
        lived_s = self._died_at.get(worker, self._clock.now) - worker.started_at
        seq = int(lived_s / BEAT_EVERY_S)
        state = WorkerState.READY if worker.state is WorkerState.LOST else worker.state
        known = self._known_workers.get(worker)
        if known is None or (known.beat.seq, known.beat.state) != (seq, state):
            heard_at = worker.started_at + seq * BEAT_EVERY_S
            beat = WorkerBeat(worker.card(), seq, state, heard_at)
            known = self._known_workers[worker] = KnownWorker(beat, worker.started_at, heard_at)
        return known

    def _recall(self, now: float) -> None:
        """What lies on a Lane that nobody listens to any more waits again."""
        lanes = {pool.lane for pool in self._fleet.pools}
        lanes.add(BULK_LANE)
        for lane in list(self._queue.names()):
            if lane not in lanes:
                for shard in self._queue.recall(lane):
                    self.backlog.put_back(shard)
