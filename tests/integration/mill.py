"""Workers that finish so many tokens a second, behind a real control side, on a clock of the test.

Ledger, store, queue, dispatch and accept are the real ones; only the engine is arithmetic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pipeline import PIN, Bench, make_job, make_windows

from gristmill.control.accept import take_bells
from gristmill.control.base import read_batch
from gristmill.control.dispatch import dispatch
from gristmill.control.ingest import ingest_windows
from gristmill.control.sweep import sweep
from gristmill.ledger import batches
from gristmill.ledger.batch import Batch, Submission
from gristmill.queues.base import BULK_LANE, Lease
from gristmill.stores.keys import segment_key, shard_key, stop_key
from gristmill.stores.segments import bell_of
from gristmill.types import (
    CONTROL_LANE,
    Choice,
    Endpoint,
    FinishReason,
    Job,
    RowResult,
    Segment,
    ShardPointer,
    Usage,
)
from gristmill.wire import decode_pointer, decode_shard, encode_bell, encode_segment

_ANSWER = (Choice((1,), "x", FinishReason.STOP),)


@dataclass
class _Held:
    """A Shard that a worker has: its Jobs that are not done, and the work done for the first."""

    lease: Lease
    pointer: ShardPointer
    jobs: list[tuple[int, Job]]
    seq: int = 0
    tokens_in_hand: float = 0.0


@dataclass
class Mill:
    """`answer_tokens` is how long the answers to a batch are, whatever was expected."""

    bench: Bench
    tokens_per_s: float = 1000.0
    num_workers: int = 1
    answer_tokens: dict[str, int] = field(default_factory=dict)
    finished: Counter[str] = field(default_factory=Counter)
    finished_of_batch: Counter[str] = field(default_factory=Counter)
    _held: dict[int, _Held] = field(default_factory=dict)

    def submit(
        self,
        tenant_id: str,
        batch_id: str,
        *,
        num_jobs: int,
        prompt_tokens: int = 400,
        answer_tokens: int = 100,
        max_tokens: int = 100,
        due_in_s: int | None = None,
        price: dict[str, str] | None = None,
        **asked: Any,
    ) -> Batch:
        """A batch whose input is read at once."""
        control = self.bench.control
        self.answer_tokens[batch_id] = answer_tokens
        with control.ledger.write() as conn:
            batches.create(
                conn,
                tenant_id,
                batch_id,
                run_id="run-1",
                model=PIN,
                seed=batch_id,
                input_fingerprint="sha",
                options={"price": price} if price else {},
                created_at=control.now,
                expires_at=None if due_in_s is None else control.now + due_in_s,
                submission=Submission(Endpoint.CHAT, "file-1", "24h", **asked),
            )
        prompt = (1,) * prompt_tokens
        jobs = (make_job(i, prompt=prompt, max_tokens=max_tokens) for i in range(num_jobs))
        made = self.batch(tenant_id, batch_id)
        ingest_windows(control, made, make_windows(jobs), should_pause=lambda: False)
        return self.batch(tenant_id, batch_id)

    def batch(self, tenant_id: str, batch_id: str) -> Batch:
        return read_batch(self.bench.control, tenant_id, batch_id)

    def run(self, seconds: float, *, step_s: float = 1.0) -> None:
        """Dispatch, work, accept and sweep for so long."""
        control = self.bench.control
        for _ in range(round(seconds / step_s)):
            dispatch(control)
            self.bench.clock.advance(step_s)
            for worker in range(self.num_workers):
                self._work(worker, self.tokens_per_s / self.num_workers * step_s)
            while take_bells(control):
                pass
            sweep(control)

    def _work(self, worker: int, num_tokens: float) -> None:
        while num_tokens > 0:
            held = self._held.get(worker) or self._take(worker)
            if held is None:
                return
            results: list[RowResult] = []
            num_tokens = self._finish_jobs(held, num_tokens, results)
            self._store(held, results)
            if not held.jobs:
                self.bench.queue.ack(held.lease)
                del self._held[worker]
            else:
                self.bench.queue.renew([held.lease])

    def _take(self, worker: int) -> _Held | None:
        leases = self.bench.queue.receive(BULK_LANE, 1, 0)
        if not leases:
            return None
        pointer = decode_pointer(leases[0].body)
        key = shard_key(pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n)
        shard = decode_shard(self.bench.store.get(key))
        stop = stop_key(pointer.tenant_id, pointer.batch_id)
        is_stopped = stop in list(self.bench.store.list(stop))
        jobs = [] if is_stopped else list(enumerate(shard.jobs))
        self._held[worker] = _Held(leases[0], pointer, jobs)
        return self._held[worker]

    def _finish_jobs(self, held: _Held, num_tokens: float, results: list[RowResult]) -> float:
        """What is left of the tokens that a worker can do in this step."""
        pointer = held.pointer
        while held.jobs:
            job_idx, job = held.jobs[0]
            usage = Usage(job.num_prompt_tokens, self.answer_tokens[pointer.batch_id])
            cost = usage.prompt_tokens + usage.completion_tokens
            missing = cost - held.tokens_in_hand
            if num_tokens < missing:
                held.tokens_in_hand += num_tokens
                return 0.0
            num_tokens -= missing
            held.tokens_in_hand = 0.0
            held.jobs.pop(0)
            results.append(RowResult(job_idx, job.rows, usage, _ANSWER, finished_at=5))
            self.finished[pointer.tenant_id] += cost
            self.finished_of_batch[pointer.batch_id] += cost
        return num_tokens

    def _store(self, held: _Held, results: list[RowResult]) -> None:
        pointer = held.pointer
        segment = Segment(
            pointer.tenant_id,
            pointer.batch_id,
            pointer.run_id,
            pointer.n,
            f"att-{held.lease.id}",
            held.seq,
            tuple(results),
        )
        held.seq += 1
        bell = bell_of(segment)
        self.bench.store.put(segment_key(bell), encode_segment(segment))
        self.bench.queue.send(CONTROL_LANE, encode_bell(bell))


def jain_index(values: list[float]) -> float:
    """1 when all have the same, 1/n when one has all (Jain, Chiu and Hawe 1984)."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
