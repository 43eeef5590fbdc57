"""The process that turns Leases into Segments: receive, compute, store, ring, ack.

It knows the queue and the store, nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from gristmill.compute import WorkerConfig, WorkerStats
from gristmill.errors import CorruptDocument, KeyNotFound, UnsupportedFormat
from gristmill.queues.base import Lease, Queue
from gristmill.stores.base import Store
from gristmill.stores.keys import shard_key
from gristmill.types import Shard, ShardPointer
from gristmill.wire import decode_pointer, decode_shard
from gristmill_worker.attempt import Attempt, new_attempt_id
from gristmill_worker.choices import computed_choices, of_choice
from gristmill_worker.engine.base import NOTHING, Engine, StepOutput
from gristmill_worker.leases import LeaseKeeper
from gristmill_worker.segments import SegmentWriter, read_shard_progress, ring

log = logging.getLogger(__name__)

#: While there is work, a Lane that was empty is asked again after so long.
_POLL_INTERVAL_S = 0.5


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
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._store = store
        self._config = config
        self.equipment = equipment
        self._monotonic = monotonic
        self._wall = wall
        self.leases = LeaseKeeper(queue, watchdog_s=config.watchdog_s, clock=monotonic)
        self._attempts: list[Attempt] = []
        self._attempt_of: dict[str, Attempt] = {}
        self._poll_at = monotonic()
        self._stats = WorkerStats()

    @property
    def stats(self) -> WorkerStats:
        return self._stats

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, then drain. What the Engine raises leaves after a flush."""
        with self.leases:
            try:
                while not stop.is_set():
                    self.turn()
            except Exception:
                log.exception("worker ends")
                self._save_results()
                raise
            self.drain()

    def turn(self) -> None:
        """Receive what there is room for, one step of the Engine, and what is due after it."""
        self.leases.beat()
        self._fence_lost()
        self._receive()
        if self._attempts:
            self._take(self._engine.step())
            self._flush_due()

    def drain(self) -> None:
        """Save everything that is under way and give the Leases back."""
        for attempt in list(self._attempts):
            if self._flush(attempt):
                self._forget(attempt)
                self._queue.release(attempt.lease)
                log.info("attempt drained %s", _names(attempt))

    def _receive(self) -> None:
        while self._engine.num_live < 2 * self._engine.max_num_seqs:
            now = self._monotonic()
            if self._attempts and now < self._poll_at:
                return
            wait_s = 0.0 if self._attempts else self._config.idle_wait_s
            received = self._queue.receive(self._config.lane, 1, wait_s)
            if not received:
                self._poll_at = now + _POLL_INTERVAL_S
                return
            # The Lease counts from before the call: it may have begun at any time since.
            self._open(received[0], since=now)

    def _open(self, lease: Lease, *, since: float) -> None:
        """Begin an Attempt, unless there is nothing to do, or it is not for this Worker."""
        try:
            pointer = decode_pointer(lease.body)
            if any(attempt.shard.pointer == pointer for attempt in self._attempts):
                log.info("shard is under way here already shard=%d", pointer.n)
                self._queue.ack(lease)
                return
            shard = self._read_shard(pointer)
        except KeyNotFound:
            log.info("shard is gone, its batch has ended message=%s", lease.body)
            self._queue.ack(lease)
            return
        except (CorruptDocument, UnsupportedFormat) as error:
            log.error("shard given back message=%s reason=%s", lease.body, error)
            self._queue.release(lease, self._queue.lease_s)
            return
        if shard.model != self._config.pin:
            log.warning(
                "shard given back batch=%s shard=%d: it was made for %s, this worker holds %s",
                shard.batch_id,
                shard.n,
                shard.model,
                self._config.pin,
            )
            self._queue.release(lease, self._queue.lease_s)
            return
        self.leases.add(lease, since=since)
        self._begin(lease, shard)

    def _read_shard(self, pointer: ShardPointer) -> Shard:
        key = shard_key(pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n)
        return decode_shard(self._store.get(key))

    def _begin(self, lease: Lease, shard: Shard) -> None:
        progress = read_shard_progress(self._store, shard.pointer)
        for bell in progress.bells:
            ring(self._queue, bell)
        attempt_id = new_attempt_id()
        writer = SegmentWriter(self._store, self._queue, shard.pointer, attempt_id)
        attempt = Attempt(attempt_id, shard, lease, writer, now=self._monotonic())
        for job_idx, job in enumerate(shard.jobs):
            if job_idx in progress.finished:
                continue
            for choice_idx in computed_choices(job):
                seq_id = attempt.start(job_idx, choice_idx)
                self._attempt_of[seq_id] = attempt
                resume = progress.generated.get((job_idx, choice_idx), NOTHING)
                self._engine.add(seq_id, of_choice(job, choice_idx), resume)
                self._count(num_resumed_tokens=len(resume.token_ids))
        if attempt.is_done:
            self._finish(attempt)
            return
        self._attempts.append(attempt)
        log.info(
            "attempt began %s jobs=%d finished_before=%d",
            _names(attempt),
            len(shard.jobs),
            len(progress.finished),
        )

    def _take(self, output: StepOutput) -> None:
        now = int(self._wall())
        for finished in output.finished:
            attempt = self._attempt_of.pop(finished.seq_id, None)
            if attempt is None:
                continue  # its row has failed in this very step
            for seq_id in attempt.finish(finished, at=now):
                self._engine.cancel(seq_id)
                del self._attempt_of[seq_id]
        self._count(
            num_prefill_tokens=output.num_prefill_tokens,
            num_generated_tokens=len(output.advanced),
            num_preempted=output.num_preempted,
        )

    def _flush_due(self) -> None:
        for attempt in list(self._attempts):
            if attempt.is_done:
                if self._flush(attempt):
                    self._finish(attempt)
            elif attempt.is_due(
                self._monotonic(),
                flush_interval_s=self._config.flush_interval_s,
                quiet_interval_s=self._config.quiet_flush_interval_s,
            ):
                self._flush(attempt)

    def _flush(self, attempt: Attempt) -> bool:
        """False when the Lease is lost: then nothing is written, and the Attempt is over."""
        if not self.leases.is_safe(attempt.lease):
            self._fence(attempt)
            return False
        attempt.flush(self._engine, now=self._monotonic())
        return True

    def _finish(self, attempt: Attempt) -> None:
        """All is stored and has rung; only now the message may go."""
        self._forget(attempt)
        if not self._queue.ack(attempt.lease):
            log.info("lease had ended, the results stand %s", _names(attempt))

    def _fence_lost(self) -> None:
        for attempt in list(self._attempts):
            if not self.leases.is_safe(attempt.lease):
                self._fence(attempt)

    def _fence(self, attempt: Attempt) -> None:
        log.warning("lease lost, attempt given up %s", _names(attempt))
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        for seq_id in attempt.running:
            self._engine.cancel(seq_id)
            self._attempt_of.pop(seq_id, None)
        self.leases.drop(attempt.lease)
        if attempt in self._attempts:
            self._attempts.remove(attempt)

    def _save_results(self) -> None:
        try:
            for attempt in self._attempts:
                if self.leases.is_safe(attempt.lease):
                    attempt.flush_results()
        except Exception:
            # What ended the worker is the error to raise, not this one.
            log.exception("results not saved")

    def _count(self, **more: int) -> None:
        self._stats = replace(
            self._stats, **{name: getattr(self._stats, name) + n for name, n in more.items()}
        )


def _names(attempt: Attempt) -> str:
    shard = attempt.shard
    return f"batch={shard.batch_id} shard={shard.n} attempt={attempt.id}"


def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
    """The Worker behind the entry point `gristmill.worker`, with its model loaded."""
    import torch

    from gristmill_worker.build import build_engine
    from gristmill_worker.device import describe_device
    from gristmill_worker.models.loader import load_model

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    loaded = load_model(
        config.model_path,
        dtype=config.pin.dtype,
        device=config.device,
        max_model_len=config.max_model_len,
    )
    engine = build_engine(
        loaded,
        cache_dir=config.cache_dir,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        kv_memory_fraction=config.kv_memory_fraction,
    )
    kv_tokens = engine.num_blocks * config.block_size
    equipment = (
        f"{engine.max_num_seqs} rows at once; KV cache of {kv_tokens:,} tokens "
        f"({kv_tokens * loaded.kv_bytes_per_token / 2**30:.1f} GiB); {engine.max_model_len:,} "
        f"tokens a row at most; {config.pin.dtype} on {describe_device(config.device)}"
    )
    log.info("engine ready model=%s: %s", config.pin.name, equipment)
    return Worker(engine, queue, store, config, equipment=equipment)
