"""A simulated Worker: takes Shards while it has room, as intake.py does, and runs its engine.

It stores what has finished every few seconds, so that one that dies loses no more than that; what
it held comes back to its Lane when its Lease has ended, and goes on from the newest checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from gristmill.fleet import WorkerCard, WorkerState
from gristmill.simulator.clock import EventClock
from gristmill.simulator.costs import Costs, Timing
from gristmill.simulator.engine import Engine, Jump, Sequence
from gristmill.simulator.lanes import Lanes
from gristmill.simulator.machine import Machine
from gristmill.simulator.shards import SimShard

#: The first Segment after the open mark comes this soon (attempt.py).
_FIRST_FLUSH_S = 1.0
#: As in load.py.
_READ_AHEAD_S = 60.0
#: As in leases.py.
_RENEWALS_PER_LEASE = 4


@dataclass(eq=False, slots=True)
class Attempt:
    """A Shard that runs here: one Sequence for each row that had no result when it was opened."""

    shard: SimShard
    opened_at: float
    seqs: list[Sequence] = field(default_factory=list)
    num_left: int = 0


class Hearer(Protocol):
    """The control side, as a Worker sees it."""

    def hear_opened(self, worker: Worker, shard: SimShard) -> None:
        """An Attempt has begun."""

    def hear_closed(self, worker: Worker, attempt: Attempt, num_segments: int) -> None:
        """All its rows have their results; `num_segments` were stored since it began."""

    def hear_stored(self, worker: Worker, shard: SimShard, rows: list[Sequence]) -> None:
        """Of an Attempt that died, the rows that it had stored."""

    def row_finished(self, shard: SimShard) -> None:
        """So much less lies ahead."""

    def message_taken(self) -> None:
        """There is room on a Lane."""


class Worker:
    def __init__(
        self,
        worker_id: str,
        machine: Machine,
        lanes: tuple[str, ...],
        *,
        clock: EventClock,
        queue: Lanes,
        control: Hearer,
        costs: Costs,
        timing: Timing,
    ) -> None:
        self.id = worker_id
        self.machine = machine
        self.lanes = lanes
        self._clock = clock
        self._queue = queue
        self._control = control
        self._costs = costs
        self._timing = timing
        self._engine = Engine(machine, turn_s=costs.turn_s)
        #: Read ahead, and not opened; the first is being opened while `_is_opening`.
        self._ahead: deque[SimShard] = deque()
        self._attempts: dict[Attempt, None] = {}
        self._is_fetching = self._is_opening = False
        self.state = WorkerState.LOADING
        self.started_at = clock.now
        self.busy_s = 0.0

    def start(self) -> None:
        """Loaded: takes work from now on."""
        self.state = WorkerState.READY
        self._fetch()

    def can_run(self, max_row_tokens: int) -> bool:
        return max_row_tokens <= self.machine.max_row_tokens

    def wake(self) -> None:
        """A message came. While work is read ahead it only looks now and then."""
        wait_s = self._costs.poll_s / 2 if self._ahead else self._costs.wake_s
        self._clock.at(self._clock.now + wait_s, self._fetch)

    def card(self) -> WorkerCard:
        """What it says of itself just now."""
        return self.machine.card(self.id, self.lanes, self._engine.speeds)

    def die(self, redeliver: Callable[[SimShard, float], None]) -> None:
        """As by kill -9. `redeliver(shard, at)` hears when each message is seen again."""
        now, lease_s = self._clock.now, self._timing.lease_s
        self._queue.forget(self)
        self.state = WorkerState.LOST
        if self._engine.jump is not None:
            self.busy_s += now - self._engine.jump.began
        decoded = {id(seq): num_tokens for seq, num_tokens in self._engine.remove_all(now)}
        renewed_at = now - (now - self.started_at) % (lease_s / _RENEWALS_PER_LEASE)
        for attempt in self._attempts:
            self._leave(attempt, decoded)
        for shard in (*(attempt.shard for attempt in self._attempts), *self._ahead):
            redeliver(shard, renewed_at + lease_s)
        self._attempts.clear()
        self._ahead.clear()

    def _leave(self, attempt: Attempt, decoded: dict[int, int]) -> None:
        """What the store remembers of an Attempt that has just died."""
        stored_at = self._last_flush(attempt)
        stored, left = [], []
        for seq in attempt.seqs:
            if 0 <= seq.finished_at <= stored_at:
                stored.append(seq)
            else:
                num_tokens = decoded.get(id(seq), seq.row.output_tokens)
                left.append((seq.row, self._at_flush(seq, num_tokens, stored_at)))
        attempt.shard.leave(left)
        self._control.hear_stored(self, attempt.shard, stored)

    def _at_flush(self, seq: Sequence, num_tokens: int, stored_at: float) -> int:
        """Of so many tokens by now, how many there were at the newest checkpoint: in proportion."""
        until = seq.finished_at if seq.finished_at >= 0 else self._clock.now
        if seq.begun_at < 0 or not seq.begun_at < stored_at < until:
            return seq.done_tokens
        share = (stored_at - seq.begun_at) / (until - seq.begun_at)
        return seq.done_tokens + int(share * (num_tokens - seq.done_tokens))

    def _last_flush(self, attempt: Attempt) -> float:
        since = self._clock.now - attempt.opened_at
        if since < _FIRST_FLUSH_S:
            return attempt.opened_at
        every_s = self._timing.flush_interval_s
        return attempt.opened_at + _FIRST_FLUSH_S + (since - _FIRST_FLUSH_S) // every_s * every_s

    @property
    def _is_gone(self) -> bool:
        return self.state is WorkerState.LOST

    def _has_room(self) -> bool:
        """As load.py says: as many rows, and tokens, as run at once may wait here, but no more than
        begins within _READ_AHEAD_S, or one Shard; before the first step, one beside another."""
        rows = 2 * self.machine.max_num_seqs - self._engine.num_live
        tokens = 2 * self.machine.kv_tokens
        for attempt in self._attempts:
            tokens -= attempt.shard.expected_tokens * attempt.num_left // attempt.shard.num_jobs
        num_fetched = sum(shard.expected_tokens for shard in self._ahead)
        rows -= sum(shard.num_left for shard in self._ahead)
        if rows <= 0 or tokens - num_fetched <= 0:
            return False
        tokens_per_s = self._engine.speeds.tokens_per_s
        if tokens_per_s is None:
            return len(self._attempts) + len(self._ahead) <= 1
        num_ahead = self._engine.num_tokens_ahead + num_fetched
        return not num_ahead or num_ahead < _READ_AHEAD_S * tokens_per_s

    def _fetch(self) -> None:
        if self._is_gone or self._is_fetching or not self._has_room():
            return
        shard = self._queue.take(self)
        if shard is None:
            self._queue.wait(self)
            return
        self._queue.forget(self)
        self._is_fetching = True
        self._ahead.append(shard)
        self._control.message_taken()
        self._clock.at(self._clock.now + self._costs.fetch_s, self._fetched)

    def _fetched(self) -> None:
        self._is_fetching = False
        self._open_next()
        self._fetch()

    def _open_next(self) -> None:
        """The next Shard, when the engine is about to have room for it."""
        has_one = len(self._ahead) > self._is_fetching
        is_full = 4 * self._engine.num_live >= 5 * self.machine.max_num_seqs
        if self._is_gone or self._is_opening or is_full or not has_one:
            return
        self._is_opening = True
        self._clock.at(self._clock.now + self._costs.open_s, self._opened)

    def _opened(self) -> None:
        if self._is_gone:
            return
        self._is_opening = False
        shard = self._ahead.popleft()
        attempt = Attempt(shard, self._clock.now)
        attempt.seqs = [Sequence(row, attempt, done_tokens) for row, done_tokens in shard.rows]
        attempt.num_left = len(attempt.seqs)
        shard.num_attempts += 1
        self._attempts[attempt] = None
        self._control.hear_opened(self, shard)
        if self._engine.may_admit():
            self._expect_end(self._engine.cut(self._clock.now))
        self._engine.add(attempt.seqs)
        self._go_on()
        self._open_next()
        self._fetch()

    def _go_on(self) -> None:
        """Begin the next jump, unless one is under way."""
        if self._engine.jump is None:
            jump = self._engine.begin(self._clock.now)
            if jump is not None:
                self._expect_end(jump.ends_at)

    def _expect_end(self, at: float) -> None:
        jump = self._engine.jump
        assert jump is not None, "it has just begun"
        self._clock.at(at, partial(self._end_jump, jump))

    def _end_jump(self, jump: Jump) -> None:
        if self._engine.jump is not jump:
            return  # it was cut short, or the Worker died
        self.busy_s += self._clock.now - jump.began
        num_ahead = self._engine.num_tokens_ahead
        finished = self._engine.end(self._clock.now)
        for seq in finished:
            attempt = seq.holder
            attempt.num_left -= 1
            self._control.row_finished(attempt.shard)
            if not attempt.num_left:
                self._close(attempt)
        self._go_on()
        if finished or self._engine.num_tokens_ahead != num_ahead:
            self._open_next()
            self._fetch()

    def _close(self, attempt: Attempt) -> None:
        del self._attempts[attempt]
        lasted_s = self._clock.now - attempt.opened_at
        num_segments = 2 + int(lasted_s / self._timing.flush_interval_s)
        tell = partial(self._control.hear_closed, self, attempt, num_segments)
        self._clock.at(self._clock.now + self._costs.close_s, tell)
