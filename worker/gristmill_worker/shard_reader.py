"""From a message to the Shard that it points to, or to what has to become of the message."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import replace

from gristmill.errors import CorruptDocument, KeyNotFound, UnsupportedFormat
from gristmill.fleet import WorkerCard
from gristmill.needs import needs_of, needs_together
from gristmill.queues.base import Lease, Queue
from gristmill.row_limits import limited, read_limits, row_tokens_of
from gristmill.stores.base import Store
from gristmill.stores.keys import limits_prefix, shard_key, stop_key
from gristmill.types import Bell, Shard, ShardPointer
from gristmill.wire import decode_pointer, decode_shard
from gristmill_worker.outbox import Outbox

log = logging.getLogger(__name__)

#: What tells a Shard from every other that a Worker can hold.
Names = tuple[str, str, str, int]


def names(pointer: ShardPointer) -> Names:
    """Tenant, batch, run and number."""
    return pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n


class ShardReader:
    """Reads Shards for one Worker; all that is not for it, it deals with itself."""

    def __init__(
        self, queue: Queue, store: Store, outbox: Outbox, card: WorkerCard, *, is_sole: bool = False
    ) -> None:
        """`is_sole`: there is nobody else, so that nothing is left to others."""
        self._queue = queue
        self._store = store
        self._card = card
        self._outbox = outbox
        self._is_sole = is_sole

    def read(self, lease: Lease, under_way: Container[Names]) -> tuple[ShardPointer, Shard] | None:
        """None when the message has been dealt with: there is nothing to do, or not here."""
        try:
            pointer = decode_pointer(lease.body)
            if names(pointer) in under_way:
                log.info("shard is under way here already shard=%d", pointer.n)
                self._queue.ack(lease)
                return None
            shard = self._find(pointer)
        except CorruptDocument as error:
            log.error("message put aside message=%r reason=%s", lease.body, error)
            self._queue.dead_letter(lease, str(error))
            return None
        except UnsupportedFormat as error:
            log.error("message given back message=%r reason=%s", lease.body, error)
            self._queue.release(lease, self._queue.lease_s)
            return None
        if shard is None:
            log.info("shard is gone, its batch has ended message=%r", lease.body)
            self._queue.ack(lease)
            return None
        why_not = self._why_not(pointer, shard)
        if why_not:
            log.warning(
                "shard given back batch=%s shard=%d reason=%s", shard.batch_id, shard.n, why_not
            )
            self._queue.release(lease, self._queue.lease_s)
            return None
        return pointer, shard

    def _why_not(self, pointer: ShardPointer, shard: Shard) -> str:
        """Why this Worker leaves a Shard to others; empty if it does not.

        It may have come to a Lane after the Router sent the Shard there. An answer that ended here
        for want of room, and nowhere else, would be the wrong one.
        """
        card = self._card
        if not card.runs(shard.model):
            adapters = f" and the adapters {', '.join(card.adapters)}" if card.adapters else ""
            return f"it was made for {shard.model}, this worker holds {card.model}{adapters}"
        if self._is_sole or not pointer.row_tokens:
            return ""
        # Rows may have been refused since it was made, and a limit is there since it was sent.
        row_tokens = min(pointer.row_tokens, max(map(row_tokens_of, shard.jobs), default=0))
        if row_tokens > card.max_row_tokens:
            return f"it has rows of {row_tokens} tokens, this worker takes {card.max_row_tokens}"
        missing = needs_together(map(needs_of, shard.jobs)).features - set(card.features)
        if card.features and missing:
            return f"it asks for {', '.join(sorted(missing))}, which this worker cannot do"
        return ""

    def has_ended(self, tenant_id: str, batch_id: str) -> bool:
        """Whether the batch was told to stop."""
        try:
            self._store.get(stop_key(tenant_id, batch_id))
        except KeyNotFound:
            return False
        return True

    def _find(self, pointer: ShardPointer) -> Shard | None:
        """None when its batch has ended."""
        key = shard_key(pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n)
        try:
            try:
                shard = decode_shard(self._store.get(key))
            except CorruptDocument:  # on its way here, perhaps
                shard = decode_shard(self._store.get(key))
        except KeyNotFound:
            return None
        except CorruptDocument:
            self._outbox.ring(pointer.control_lane, _damaged(pointer))
            raise
        if self.has_ended(pointer.tenant_id, pointer.batch_id):
            return None
        return shard if self._is_sole else self._limited(shard)

    def _limited(self, shard: Shard) -> Shard:
        """With the row limits of its batch, which the message may know nothing of yet."""
        features = needs_together(map(needs_of, shard.jobs)).features
        prefix = limits_prefix(shard.tenant_id, shard.batch_id, shard.run_id, features)
        limits = read_limits(self._store, prefix)
        return replace(shard, jobs=tuple(limited(job, limits) for job in shard.jobs))


def _damaged(pointer: ShardPointer) -> Bell:
    return Bell(
        *(pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n, "damaged", 0),
        damaged=True,
    )
