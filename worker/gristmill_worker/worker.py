"""The engine loop: takes what was opened, steps the Engine, hands Segments to the Outbox.

It knows the queue and the store, nothing else. Leases are kept, messages received and Segments
stored by threads of their own, so that the Engine waits for none of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from gristmill import crash_points
from gristmill.compute import WorkerConfig, WorkerHealth, WorkerStats
from gristmill.fleet import WorkerBeat, WorkerState
from gristmill.marks import CloseReason
from gristmill.queues.base import Queue
from gristmill.stores.base import Store
from gristmill.telemetry import Telemetry
from gristmill_worker import pulse
from gristmill_worker.announcer import Announcer
from gristmill_worker.attempt import Attempt
from gristmill_worker.card import first_card, lanes_of, plain_card
from gristmill_worker.engine.base import Engine
from gristmill_worker.evidence import PRESENCE
from gristmill_worker.intake import Intake
from gristmill_worker.lanes import Lanes
from gristmill_worker.leases import LeaseKeeper
from gristmill_worker.load import Load
from gristmill_worker.outbox import Outbox
from gristmill_worker.record import Record
from gristmill_worker.rows import EngineRows
from gristmill_worker.shard_reader import names

log = logging.getLogger(__name__)

#: What has finished when the Engine breaks is saved, if that takes no longer.
_LAST_WORDS_S = 10.0


class Worker:
    """One Engine, and as many Shards as keep it busy. One thread calls `run` or `turn`."""

    def __init__(
        self,
        engine: Engine,
        queue: Queue,
        store: Store,
        config: WorkerConfig,
        *,
        equipment: str = "",
        kv_tokens: int | None = None,
        announcer: Announcer | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`announcer` has the card of this Worker, and may beat already that it loads."""
        self._queue = queue
        self._config = config
        self._announcer = announcer or Announcer(
            queue, plain_card(config, kv_tokens=kv_tokens), monotonic=monotonic, wall=wall
        )
        names_of_lanes = lanes_of(self._announcer.card, config)
        self._lanes = Lanes(queue, names_of_lanes, patience_s=config.patience_s, clock=monotonic)
        self.equipment = equipment
        self._monotonic = monotonic
        self._wall = wall
        self.leases = LeaseKeeper(queue, watchdog_s=config.watchdog_s, clock=monotonic)
        self._outbox = Outbox(store, queue, patience_s=config.patience_s, clock=monotonic)
        self._intake = Intake(
            queue,
            store,
            config,
            lanes=self._lanes,
            card=self._announcer.card,
            leases=self.leases,
            outbox=self._outbox,
            max_rows=engine.max_num_seqs,
            max_tokens=kv_tokens,
            monotonic=monotonic,
            wall=wall,
        )
        self.leases.helpers_busy_s = self._helpers_busy_s
        self._presence_s = min(config.quiet_flush_interval_s, PRESENCE * queue.lease_s)
        self._rows = EngineRows(engine, monotonic=monotonic, wall=wall)
        self._record = self._rows.record
        self._kv_tokens = kv_tokens or 0
        self._attempts: list[Attempt] = []
        self._num_lease_losses, self._wake = 0, threading.Event()
        self._intake.wake = self._outbox.on_stored = self._wake.set
        self._outbox.on_done = lambda what: self._record.done(what)
        self._is_draining, self._busy_at = False, monotonic()
        self._announcer.fill = self._fill_beat

    @property
    def stats(self) -> WorkerStats:
        return self._rows.stats

    @property
    def health(self) -> WorkerHealth:
        found = (part.trouble for part in (self._outbox, self._intake, self.leases, self._lanes))
        return WorkerHealth(
            is_live=not self.leases.is_hanging,
            is_draining=self._is_draining,
            troubles=tuple(dict.fromkeys(filter(None, found))),
        )

    def watch(self, telemetry: Telemetry) -> None:
        self._record = self._rows.record = Record(
            telemetry, model=self._config.pin.name, kv_tokens=self._kv_tokens, wall=self._wall
        )

    def run(self, stop: threading.Event, on_hang: Callable[[], None] = lambda: None) -> None:
        """Work until `stop` is set, then drain. What the Engine raises leaves after a flush, and
        QueueError when it ends for want of work and one of its Lanes could not be asked."""
        self.leases.on_hang = on_hang
        with self._announcer, self.leases, self._outbox:
            try:
                with self._intake:
                    while not stop.is_set() and not self._has_been_idle():
                        self.turn()
            except Exception:
                log.exception("worker ends")
                self._save_results()
                raise
            self.drain()
            self._lanes.check_asked(is_stopped=stop.is_set())

    def turn(self) -> None:
        """Take what there is room for, one step of the Engine, and what is due after it."""
        self.leases.beat()
        self._fence_lost()
        self._stop_ended()
        self._release_at_their_end()
        self._take_opened()
        self._rows.fill(self._attempts, self._flush)
        if not self._rows.num_live and self._intake.is_threaded:
            self._wake.wait(self._config.idle_wait_s)
            self._wake.clear()
            # A row that runs alone may have waited for the Store, and begins before the next
            # Segment is due, or Segments would keep it waiting for ever.
            self._rows.fill(self._attempts, self._flush)
        if self._rows.num_live and self._rows.step():
            self._tell_load()
        self._flush_due()
        self._outbox.pump()

    def drain(self) -> None:
        """Save everything that is under way and give the Leases back."""
        self._is_draining = True
        self._announcer.say(WorkerState.DRAINING)
        self._intake.give_back()
        while self._intake.opened:
            self._take_over()
        for attempt in list(self._attempts):
            self._close(attempt, CloseReason.DRAINED)
        self._outbox.wait_until_empty(self._beat)

    def _beat(self) -> bool:
        # A drain that takes long is no hanging engine: its Leases last until all is stored.
        self.leases.beat()
        return False

    def _helpers_busy_s(self) -> float:
        now = self._monotonic()
        began = filter(None, (self._outbox.call_began, self._intake.work_began))
        return now - min(began, default=now)

    def _has_been_idle(self) -> bool:
        """Whether there has been nothing to do for so long that this Worker may end.

        A queue that is away, or slow, has not said that it has nothing.
        """
        limit_s = self._config.exit_when_idle_s
        if self._attempts or not (self._intake.is_idle and self._outbox.is_empty):
            self._busy_at = self._monotonic()
        busy_at = max(self._busy_at, self._intake.busy_at)
        return limit_s is not None and self._intake.empty_at - busy_at >= limit_s

    def _take_opened(self) -> None:
        while True:
            self._intake.pump()
            if not self._intake.opened:
                return
            self._take_over()

    def _take_over(self) -> None:
        attempt = self._intake.opened[0]
        self._attempts.append(attempt)
        self._record.opened(attempt)
        self._rows.count_resumed(attempt)
        self._tell_load()
        self._intake.opened.popleft()

    def _flush_due(self) -> None:
        now = self._monotonic()
        for attempt in list(self._attempts):
            if attempt.is_done:
                if not attempt.is_storing:
                    self._close(attempt, CloseReason.DONE)
            elif attempt.is_due(
                now,
                flush_interval_s=self._config.flush_interval_s,
                quiet_interval_s=self._presence_s,
            ):
                self._flush(attempt)

    def _flush(self, attempt: Attempt) -> None:
        """A Segment, unless the Lease is lost: then the Attempt is over."""
        if not self.leases.is_safe(attempt.lease):
            self._close(attempt, CloseReason.FENCED)
            return
        segment = attempt.snapshot(self._rows.generated, now=self._monotonic(), at=self._wall())
        self._outbox.store(attempt, segment)

    def _close(self, attempt: Attempt, reason: CloseReason) -> None:
        """The last Segment of an Attempt, and what becomes of its message after that."""
        lease = attempt.lease
        if reason is not CloseReason.FENCED and not self.leases.is_safe(lease):
            reason = CloseReason.FENCED
        segment = attempt.snapshot(
            self._rows.generated, now=self._monotonic(), at=self._wall(), closed=reason
        )
        self._rows.remove(attempt)
        self._attempts.remove(attempt)
        self._record.closed(attempt, reason)

        def let_go() -> None:
            if reason in (CloseReason.DONE, CloseReason.STOPPED):
                crash_points.at("acking", attempt=attempt.id)
                is_owned = self._queue.ack(lease)
                crash_points.at("acked", attempt=attempt.id)
            else:
                crash_points.at("releasing", attempt=attempt.id)
                is_owned = self._queue.release(lease)
                crash_points.at("released", attempt=attempt.id)
            if not is_owned:
                log.info("lease had ended, the results stand %s", attempt.names)
            self.leases.drop(lease)
            self._intake.under_way.discard(names(attempt.pointer))

        if reason is CloseReason.FENCED:
            log.warning("lease lost, attempt given up %s", attempt.names)
            self._num_lease_losses += 1
            self.leases.drop(lease)
            self._intake.under_way.discard(names(attempt.pointer))
            self._outbox.store(attempt, segment)
        else:
            log.info("attempt over reason=%s %s", reason, attempt.names)
            self._outbox.store(attempt, segment, then=let_go)
        self._tell_load()

    def _fence_lost(self) -> None:
        for attempt in list(self._attempts):
            if not self.leases.is_safe(attempt.lease):
                self._close(attempt, CloseReason.FENCED)

    def _stop_ended(self) -> None:
        for attempt in list(self._attempts) if self._intake.stopped else ():
            if names(attempt.pointer)[:2] in self._intake.stopped:
                self._close(attempt, CloseReason.STOPPED)

    def _release_at_their_end(self) -> None:
        """What can be held no longer is checkpointed and given back; who receives it goes on."""
        for attempt in list(self._attempts):
            if self.leases.is_at_its_end(attempt.lease):
                self._close(attempt, CloseReason.RELEASED)

    def _tell_load(self) -> None:
        num_rows = sum(len(attempt.running) for attempt in self._attempts)
        self._record.load(num_attempts=len(self._attempts), num_rows=num_rows)
        self._intake.tell(
            Load(
                num_attempts=len(self._attempts),
                num_rows=num_rows,
                num_tokens=sum(
                    attempt.num_tokens * len(attempt.running) // len(attempt.shard.jobs)
                    for attempt in self._attempts
                ),
                num_tokens_ahead=self._rows.num_tokens_ahead(self._attempts),
                tokens_per_s=self._rows.speeds.tokens_per_s,
                is_isolated=any(attempt.is_isolated for attempt in self._attempts),
            )
        )

    def _fill_beat(self, beat: WorkerBeat) -> WorkerBeat:
        return pulse.fill(
            beat,
            self._attempts,
            lanes=self._lanes,
            intake=self._intake,
            rows=self._rows,
            num_lease_losses=self._num_lease_losses,
        )

    def _save_results(self) -> None:
        give_up_at = time.monotonic() + _LAST_WORDS_S
        try:
            for attempt in self._attempts:
                segment = attempt.results_only(at=self._wall())
                if segment is not None and self.leases.is_safe(attempt.lease):
                    self._outbox.store(attempt, segment)
            self._outbox.wait_until_empty(lambda: time.monotonic() > give_up_at)
        except Exception:
            # What ended the worker is the error to raise, not this one.
            log.exception("results not saved")


def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
    """The Worker behind the entry point `gristmill.worker`, with its model loaded."""
    from gristmill_worker.equip import equip

    announcer = Announcer(queue, first_card(config))
    announcer.start()
    try:
        equipment = equip(config, announcer)
    except BaseException:
        announcer.close()
        raise
    return Worker(
        equipment.engine,
        queue,
        store,
        config,
        equipment=equipment.description,
        kv_tokens=equipment.kv_tokens,
        announcer=announcer,
    )
