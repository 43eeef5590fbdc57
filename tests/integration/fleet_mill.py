"""Several workers with limits of their own behind a real control side, on a clock of the test.

Each beats, listens to its own Lane and the mixed one, and gives back what it cannot run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pipeline import PIN, TENANT, Bench, make_job, make_result, make_segment, make_windows

from gristmill.control.accept import take_bells
from gristmill.control.base import Control, read_batch
from gristmill.control.dispatch import dispatch
from gristmill.control.ingest import ingest_windows
from gristmill.control.sweep import sweep
from gristmill.fleet import WorkerBeat, WorkerCard, WorkerState, lane_of
from gristmill.ledger import batches, routed, workers
from gristmill.ledger.batch import Batch, Submission
from gristmill.needs import needs_of, needs_together
from gristmill.queues.base import BULK_LANE, Lease
from gristmill.row_limits import limited, read_limits, row_tokens_of
from gristmill.stores.keys import limits_prefix, segment_key, shard_key
from gristmill.stores.segments import bell_of
from gristmill.types import CONTROL_LANE, Endpoint, Job, ModelPin, SamplingParams, ShardPointer
from gristmill.wire import decode_pointer, decode_shard, encode_bell, encode_segment

FEATURES = ("generate", "grammar", "logprobs", "score")


def make_card(name: str, limit: int, **changes: object) -> WorkerCard:
    card = WorkerCard(name, "host", PIN, "cpu", limit, 64, features=FEATURES)
    card = replace(card, **changes)  # type: ignore[arg-type]
    return card if card.lanes else replace(card, lanes=(lane_of(card), BULK_LANE))


@dataclass
class FleetMill:
    """A Shard is a Job. `ran` has what each worker has finished: (batch, prompt length)."""

    bench: Bench
    cards: dict[str, WorkerCard] = field(default_factory=dict)
    states: dict[str, WorkerState] = field(default_factory=dict)
    ran: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    given_back: list[tuple[str, int]] = field(default_factory=list)
    _seq: int = 0
    _beat_at: float = 0.0

    def __post_init__(self) -> None:
        self.bench.settings = self.bench.settings.model_copy(
            update={"shard_max_jobs": 1, "dispatch_window_shards": 2, "refuse_after_s": 600.0}
        )
        self.control: Control = self.bench.control

    def add(self, name: str, limit: int, **changes: object) -> WorkerCard:
        self.cards[name] = make_card(name, limit, **changes)
        self.states[name] = WorkerState.READY
        self.ran[name] = []
        self.beat()
        return self.cards[name]

    def kill(self, name: str) -> None:
        """It says nothing any more."""
        del self.cards[name]

    def beat(self) -> None:
        self._seq, self._beat_at = self._seq + 1, self.bench.clock()
        with self.control.ledger.write() as conn:
            for name, card in self.cards.items():
                beat = WorkerBeat(card, self._seq, self.states[name], self.bench.clock())
                workers.put_beat(conn, beat, now=self.control.now)

    def submit(
        self,
        batch_id: str,
        prompts: Iterable[int],
        *,
        max_tokens: int = 20,
        tenant_id: str = TENANT,
        model: ModelPin = PIN,
        **params: object,
    ) -> Batch:
        jobs = [
            replace(
                make_job(i, prompt=(1,) * n),
                params=SamplingParams(max_tokens, **params),  # type: ignore[arg-type]
            )
            for i, n in enumerate(prompts)
        ]
        with self.control.ledger.write() as conn:
            batches.create(
                conn,
                tenant_id,
                batch_id,
                run_id="run-1",
                model=model,
                seed=batch_id,
                input_fingerprint="sha",
                options={},
                created_at=self.control.now,
                expires_at=None,
                submission=Submission(Endpoint.CHAT, "file-1", "24h"),
            )
        made = read_batch(self.control, tenant_id, batch_id)
        ingest_windows(self.control, made, make_windows(jobs), should_pause=lambda: False)
        return self.batch(batch_id, tenant_id)

    def batch(self, batch_id: str, tenant_id: str = TENANT) -> Batch:
        return read_batch(self.control, tenant_id, batch_id)

    def run(self, seconds: int, *, works: bool = True, step_s: int = 1) -> None:
        """Each worker finishes a Shard in a step."""
        for _ in range(seconds // step_s):
            dispatch(self.control)
            self.bench.clock.advance(step_s)
            if self.bench.clock() - self._beat_at >= 10:
                self.beat()
            for name in self.cards if works else ():
                self.turn(name)
            while take_bells(self.control):
                pass
            sweep(self.control)

    def turn(self, name: str) -> None:
        """One Shard, if there is any."""
        for lease in self.take(name):
            self.finish(name, lease)

    def take(self, name: str) -> list[Lease]:
        card = self.cards[name]
        if self.states[name] is not WorkerState.READY:
            return []
        leases = self.bench.queue.receive(card.lanes, 1, 0)
        for lease in leases:
            pointer = decode_pointer(lease.body)
            needed = max(map(row_tokens_of, self.jobs(pointer)))
            if min(pointer.row_tokens, needed) > card.max_row_tokens:
                self.given_back.append((name, pointer.n))
                self.bench.queue.release(lease, self.bench.queue.lease_s)
                return []
        return leases

    def finish(self, name: str, lease: Lease) -> None:
        pointer = decode_pointer(lease.body)
        jobs = self.jobs(pointer)
        batch = read_batch(self.control, pointer.tenant_id, pointer.batch_id)
        results = [make_result(job, idx) for idx, job in enumerate(jobs)]
        segment = make_segment(batch, pointer.n, results, attempt=f"att-{lease.id[:20]}")
        segment = replace(segment, tenant_id=pointer.tenant_id)
        bell = bell_of(segment)
        self.bench.store.put(segment_key(bell), encode_segment(segment))
        self.bench.queue.send(CONTROL_LANE, encode_bell(bell))
        self.ran[name] += [(pointer.batch_id, len(job.prompt_ids)) for job in jobs]
        self.bench.queue.ack(lease)

    def jobs(self, pointer: ShardPointer) -> tuple[Job, ...]:
        key = shard_key(pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n)
        jobs = decode_shard(self.bench.store.get(key)).jobs
        of_run = pointer.tenant_id, pointer.batch_id, pointer.run_id
        features = needs_together(map(needs_of, jobs)).features
        limits = read_limits(self.bench.store, limits_prefix(*of_run, features))
        return tuple(limited(job, limits) for job in jobs)

    def lanes_in_use(self) -> list[str]:
        with self.control.ledger.read() as conn:
            return routed.list_lanes(conn)

    def lengths(self, name: str) -> set[int]:
        return {length for _, length in self.ran[name]}
