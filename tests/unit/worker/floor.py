"""A queue and a store that keep a journal, and Workers that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fake_engine import Clock, FakeEngine, fake_tokens
from pipeline import PIN, TENANT, MemoryStore, make_job, worker_config

from gristmill.queues.base import BULK_LANE, Lease, Queue
from gristmill.queues.memory import MemoryQueue
from gristmill.stores.keys import shard_key, stop_key
from gristmill.stores.segments import list_segments, read_segment
from gristmill.types import CONTROL_LANE, Bell, Endpoint, Job, RowResult, Segment, Shard
from gristmill.wire import decode_bell, encode_pointer, encode_shard
from gristmill_worker.worker import Worker

LEASE_S = 60.0


class JournalQueue(MemoryQueue):
    """Writes down what is sent, acknowledged and released, but no beats: they come by the clock."""

    def __init__(self, journal: list[str], clock: Clock) -> None:
        super().__init__(LEASE_S, clock)
        self.journal = journal

    def send(self, lane: str, body: bytes, **options: Any) -> None:
        if b'"kind":"beat"' not in body:
            self.journal.append(f"send {lane}")
        super().send(lane, body, **options)

    def ack(self, lease: Lease) -> bool:
        self.journal.append(f"ack {lease.lane}")
        return super().ack(lease)

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        self.journal.append(f"release {lease.lane} {delay_s:.0f}")
        return super().release(lease, delay_s)


class Floor:
    """A queue and a store, and Workers that come and go."""

    def __init__(self, queue: Queue | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.journal: list[str] = []
        self.store = MemoryStore(self.journal)
        self.queue = queue or JournalQueue(self.journal, self.clock)
        #: (prompt, position) of every token that any Worker has decoded.
        self.decoded: Counter[tuple[tuple[int, ...], int]] = Counter()

    def send(self, n: int, jobs: Iterable[Job], *, pin: Any = PIN, lane: str = BULK_LANE) -> Shard:
        shard = Shard(TENANT, "batch_1", "run-1", n, Endpoint.CHAT, pin, tuple(jobs))
        self.store.put(shard_key(TENANT, "batch_1", "run-1", n), encode_shard(shard))
        self.ring(shard, lane=lane)
        return shard

    def ring(self, shard: Shard, *, lane: str = BULK_LANE) -> None:
        self.queue.send(lane, encode_pointer(shard.pointer))
        self.journal.clear()

    def worker(
        self,
        *,
        step_s: float = 1.0,
        max_num_seqs: int = 4,
        engine: type[FakeEngine] = FakeEngine,
        **config: Any,
    ) -> Worker:
        self.engine = engine(
            clock=self.clock,
            step_s=step_s,
            max_num_seqs=max_num_seqs,
            on_decode=lambda prompt, i: self.decoded.update([(prompt, i)]),
        )
        return Worker(
            self.engine,
            self.queue,
            self.store,
            worker_config(**config),
            monotonic=self.clock,
            wall=self.clock,
        )

    def stop_batch(self) -> None:
        """As the control side does when a batch is cancelled, or has expired."""
        self.store.put(stop_key(TENANT, "batch_1"), b"")

    def turn(self, worker: Worker, *, times: int = 1) -> None:
        """Turns of a healthy Worker, whose Leases are renewed meanwhile."""
        for _ in range(times):
            worker.leases.renew()
            worker.turn()

    def run_dry(self, worker: Worker) -> None:
        for _ in range(500):
            self.turn(worker)
            stats = self.queue.stats(BULK_LANE)
            if not stats.visible and not stats.leased:
                return
        raise AssertionError("the worker does not come to an end")

    def segments(self) -> list[Segment]:
        listed = list_segments(self.store, TENANT, "batch_1", "run-1")
        return [segment for bell in listed if (segment := read_segment(self.store, bell))]

    def results(self) -> list[RowResult]:
        return [result for segment in self.segments() for result in segment.results]

    def bells(self) -> list[Bell]:
        leases = self.queue.receive(CONTROL_LANE, 999, 0)
        return [decode_bell(lease.body) for lease in leases]


def lengths(jobs: Iterable[Job]) -> list[int]:
    return [len(fake_tokens(job)) for job in jobs]


LONG = [
    job for idx in range(1000, 1100) if len(fake_tokens(job := make_job(idx, max_tokens=99))) > 15
]
