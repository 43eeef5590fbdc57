"""Takes messages off the queue and opens Attempts at their Shards, apart from the engine loop.

A Shard is read ahead of its turn, and opened when the Engine is about to have room for it: an
Attempt that has opened and died shall have run something.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from gristmill import crash_points
from gristmill.compute import WorkerConfig
from gristmill.errors import GristmillError
from gristmill.fleet import WorkerCard
from gristmill.marks import CloseReason
from gristmill.queues.base import Lease, Queue
from gristmill.stores.base import Store
from gristmill_worker.attempt import Attempt
from gristmill_worker.evidence import DEATHS, DEATHS_IN_ONE_PROCESS, find_live, judge
from gristmill_worker.lanes import Lanes
from gristmill_worker.leases import LeaseKeeper
from gristmill_worker.load import Fetched, Load
from gristmill_worker.opening import Opening
from gristmill_worker.outbox import Outbox
from gristmill_worker.segments import read_shard_progress
from gristmill_worker.shard_reader import Names, ShardReader, names

log = logging.getLogger(__name__)

#: While there is work, a Lane that was empty is asked again after so long.
_POLL_INTERVAL_S = 0.5
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 5.0
#: How long rows of a batch that has ended run on at most, however long Leases last.
_MAX_STOP_S = 15.0


class Intake:
    """While entered, a thread of its own works; else `pump` does, in the engine loop."""

    def __init__(
        self,
        queue: Queue,
        store: Store,
        config: WorkerConfig,
        *,
        lanes: Lanes,
        card: WorkerCard,
        leases: LeaseKeeper,
        outbox: Outbox,
        max_rows: int,
        max_tokens: int | None,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._store = store
        self._config = config
        self._lanes = lanes
        self._leases = leases
        self._outbox = outbox
        self._reader = ShardReader(queue, store, outbox, card, is_sole=config.is_sole)
        self._opening = Opening(store, outbox, monotonic=monotonic, wall=wall)
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._monotonic = monotonic
        self._wall = wall
        self.load = Load()
        #: Opened, and not taken over by the engine loop.
        self.opened: deque[Attempt] = deque()
        #: Shards that are under way here; the engine loop takes them out again.
        self.under_way: set[Names] = set()
        #: (tenant, batch) of batches that have ended while their rows were running here.
        self.stopped: set[tuple[str, str]] = set()
        #: Called when there is something for the engine loop.
        self.wake: Callable[[], None] = lambda: None
        #: Why it cannot work just now, for people.
        self.trouble = ""
        #: When it last found something, and when the newest look began that found all Lanes empty.
        self.busy_at, self.empty_at = monotonic(), float("-inf")
        self._fetched: deque[Fetched] = deque()
        #: Whether the first Shard fetched waits until nothing else runs here.
        self._is_making_way = False
        self._poll_at = monotonic()
        self._retry_s = _FIRST_RETRY_S
        self._failing_since: float | None = None
        self._look_at = monotonic()
        self._closing = threading.Event()
        self._more = threading.Event()
        #: When the piece of work began that is under way.
        self.work_began: float | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._more.set()
        assert self._thread is not None, "it was entered"
        self._thread.join()
        self._thread = None
        self.give_back()

    def tell(self, load: Load) -> None:
        """The engine loop has taken or finished something."""
        self.load = load
        self._more.set()

    def pump(self) -> None:
        """Do what there is to do, in this thread, unless there is one for it. Raises its error."""
        if self._thread is None:
            while self._work():
                pass
        if self._error is not None:
            raise self._error

    def give_back(self) -> None:
        """What was fetched and not opened goes back to the queue."""
        while self._fetched:
            self._release(self._fetched[0], 0.0)

    @property
    def is_threaded(self) -> bool:
        return self._thread is not None

    @property
    def num_ahead(self) -> int:
        """Shards that were fetched, and that the engine loop has not taken over."""
        return len(self._fetched) + len(self.opened)

    @property
    def is_idle(self) -> bool:
        return not self.opened and not self._fetched

    def _run(self) -> None:
        while not self._closing.is_set():
            self._more.clear()
            self.work_began = self._monotonic()
            try:
                may_have_more = self._work()
            except Exception as error:
                log.exception("intake failed")
                self._error = error
                self.wake()
                return
            finally:
                self.work_began = None
            if not may_have_more:
                self._more.wait(_POLL_INTERVAL_S)

    def _work(self) -> bool:
        """One piece of work; whether there may be more at once."""
        if self._monotonic() < self._poll_at and self.trouble:
            return False
        try:
            self._look_for_stops()
            self._give_back_what_waited_long()
            if self._wants_to_open():
                self._open(self._fetched[0])
                return True
            return self._wants_to_fetch() and self._fetch()
        except GristmillError as error:
            if not error.retryable or self._has_lost_patience():
                raise
            log.warning("outage what=intake retry_s=%.1f reason=%s", self._retry_s, error)
            self.trouble = str(error)
            self._poll_at = self._monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
            return False

    def _has_lost_patience(self) -> bool:
        now = self._monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        return now - self._failing_since >= self._config.patience_s

    def _recover(self) -> None:
        self.trouble, self._retry_s, self._failing_since = "", _FIRST_RETRY_S, None

    def _wants_to_open(self) -> bool:
        load = self.load
        if not self._fetched or self.opened or load.is_isolated:
            return False
        if self._is_making_way:
            return not load.num_attempts
        return 4 * load.num_rows < 5 * self._max_rows

    def _wants_to_fetch(self) -> bool:
        load = self.load
        if load.is_isolated or self._is_making_way or self.opened:
            return False
        if self._monotonic() < self._poll_at:
            return False
        rows, tokens = self._room()
        return rows > 0 and tokens != 0

    def _room(self) -> tuple[int, int | None]:
        rows = self.load.room_rows(self._max_rows, self._fetched)
        return rows, self.load.room_tokens(self._max_tokens, self._fetched)

    def _fetch(self) -> bool:
        now = self._monotonic()
        has_time = self._thread is not None or not self.load.num_attempts
        may_wait = has_time and not self._fetched and self._config.idle_wait_s > 0
        wait_s = self._config.idle_wait_s if may_wait else 0.0
        rows, tokens = self._room()
        received = self._lanes.receive(wait_s, max_rows=rows, max_tokens=tokens)
        self._recover()
        if not received:
            if self._lanes.has_asked_all:  # else nobody knows what the other one has
                self.empty_at = now
            if not may_wait:
                self._poll_at = now + _POLL_INTERVAL_S
            return self._thread is not None and may_wait
        self.busy_at = self._monotonic()
        # The Lease counts from before the call: it may have begun at any time since.
        self._take(received[0], since=now)
        return True

    def _take(self, lease: Lease, *, since: float) -> None:
        self._leases.add(lease, since=since)
        crash_points.at("received", lease=lease.id, since=since)
        try:
            found = self._reader.read(lease, self.under_way)
        except GristmillError:
            self._leases.drop(lease)  # its message comes back when the Lease ends
            raise
        if found is None:
            self._leases.drop(lease)
            return
        crash_points.at("fetched", lease=lease.id, shard=found[0].n)
        self.under_way.add(names(found[0]))
        self._fetched.append(Fetched(lease, *found))

    def _open(self, fetched: Fetched) -> None:
        """Begin an Attempt, unless there is nothing left to do, or another has begun one."""
        if not self._leases.is_safe(fetched.lease):
            log.warning("lease lost before its turn came shard=%d", fetched.pointer.n)
            self._opening.give_up(fetched, CloseReason.FENCED)
            self._forget(fetched)
            return
        if self._opening.has_begun(fetched):
            self._begin(fetched)
            return
        shard = fetched.shard
        crash_points.at("reading", lease=fetched.lease.id)
        progress = read_shard_progress(self._store, fetched.pointer)
        is_done = len(progress.finished) >= len(shard.jobs)
        if not self._config.is_sole and not is_done:
            live = find_live(progress.traces, now=self._wall(), lease_s=self._queue.lease_s)
            if live is not None:
                log.info("shard left to attempt=%s shard=%d", live.attempt_id, fetched.pointer.n)
                self._release(fetched, self._queue.lease_s)
                return
        num_deaths = DEATHS_IN_ONE_PROCESS if self._config.is_sole else DEATHS
        verdict = judge(progress.traces, num_jobs=len(shard.jobs), num_deaths=num_deaths)
        if verdict.is_isolated and self.load.num_attempts and not is_done:
            self._make_way_for(fetched)
            return
        self._outbox.ring_again(fetched.pointer.control_lane, progress.bells)
        if is_done:
            log.info("shard is done already batch=%s shard=%d", shard.batch_id, shard.n)
            self._outbox.call("ack", lambda: self._ack(fetched))
            self._take_out(fetched)
            return
        self._opening.begin(fetched, progress, verdict)
        self._begin(fetched)

    def _begin(self, fetched: Fetched) -> None:
        attempt = self._opening.open(fetched)
        self._take_out(fetched)
        self._recover()
        self.opened.append(attempt)
        self.wake()

    def _make_way_for(self, fetched: Fetched) -> None:
        """What kills its worker may run when nothing else does; the rest is for others."""
        for other in [f for f in self._fetched if f is not fetched]:
            self._release(other, 0.0)
        self._is_making_way = True

    def _give_back_what_waited_long(self) -> None:
        """What the queue lets nobody hold for longer, somebody may receive again."""
        for fetched in [f for f in self._fetched if self._leases.is_at_its_end(f.lease)]:
            log.info("shard given back, its lease cannot last longer shard=%d", fetched.pointer.n)
            self._release(fetched, 0.0)

    def _release(self, fetched: Fetched, delay_s: float) -> None:
        def release() -> None:
            self._queue.release(fetched.lease, delay_s)

        if not self._opening.give_up(fetched, CloseReason.RELEASED, then=release):
            self._outbox.call("release", release)
        self._forget(fetched)

    def _ack(self, fetched: Fetched) -> None:
        """In the Outbox's turn; until then the Lease is renewed, or the message would come back."""
        self._queue.ack(fetched.lease)
        self._let_go(fetched)

    def _forget(self, fetched: Fetched) -> None:
        self._take_out(fetched)
        self._let_go(fetched)

    def _take_out(self, fetched: Fetched) -> None:
        self._fetched.remove(fetched)
        self._is_making_way = False

    def _let_go(self, fetched: Fetched) -> None:
        self._leases.drop(fetched.lease)
        self.under_way.discard(names(fetched.pointer))

    def _look_for_stops(self) -> None:
        """With each renewal of Leases: whether a batch whose rows run here has ended."""
        if self._monotonic() < self._look_at:
            return
        self._look_at = self._monotonic() + min(self._queue.lease_s / 4, _MAX_STOP_S)
        under_way = {of_shard[:2] for of_shard in self.under_way.copy()}
        self.stopped &= under_way
        for tenant_id, batch_id in under_way - self.stopped:
            if self._reader.has_ended(tenant_id, batch_id):
                self.stopped.add((tenant_id, batch_id))
                self.wake()
            self._recover()
