"""Begins Attempts: an open mark lies in the Store before anything of a Shard runs.

A store may take a mark and fail to say so, and one that nobody closes looks like the death of a
worker. So the same mark is written again until the store has said that it is there, and is closed
when nothing comes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gristmill import crash_points
from gristmill.marks import CloseReason
from gristmill.stores.base import Store
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.types import Segment
from gristmill.wire import encode_segment
from gristmill_worker.attempt import Attempt
from gristmill_worker.engine.base import Generated
from gristmill_worker.evidence import Verdict
from gristmill_worker.load import Fetched
from gristmill_worker.outbox import Outbox
from gristmill_worker.segments import ShardProgress

log = logging.getLogger(__name__)


class Opening:
    """Belongs to the Intake; `wall` is Unix time."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._monotonic = monotonic
        self._wall = wall
        #: Attempts whose mark the store has not said to have, by the Lease that they are of.
        self._begun: dict[str, tuple[Attempt, Segment]] = {}

    def has_begun(self, fetched: Fetched) -> bool:
        """Whether the mark of an Attempt at it may lie in the Store."""
        return fetched.lease.id in self._begun

    def begin(self, fetched: Fetched, progress: ShardProgress, verdict: Verdict) -> None:
        """An Attempt that goes on from what others have left, in memory only."""
        now = self._monotonic()
        attempt = Attempt(fetched.shard, fetched.pointer, fetched.lease, progress, verdict, now=now)
        self._begun[fetched.lease.id] = attempt, attempt.opening(at=self._wall())

    def open(self, fetched: Fetched) -> Attempt:
        """The Attempt that was begun, its mark in the Store. Raises StoreError; then call again."""
        attempt, mark = self._begun[fetched.lease.id]
        pointer = fetched.pointer
        facts = {"batch": pointer.batch_id, "shard": pointer.n, "lease": fetched.lease.id}
        crash_points.at("opening", attempt=attempt.id, **facts)
        self._store.put(segment_key(bell_of(mark)), encode_segment(mark))
        crash_points.at("opened", attempt=attempt.id)
        del self._begun[fetched.lease.id]
        self._outbox.ring(pointer.control_lane, bell_of(mark))
        log.info("attempt began %s %s", attempt.names, attempt.beginning)
        return attempt

    def give_up(
        self, fetched: Fetched, reason: CloseReason, then: Callable[[], object] | None = None
    ) -> bool:
        """Close what was begun, and call `then` after that; False when nothing was."""
        attempt, _ = self._begun.pop(fetched.lease.id, (None, None))
        if attempt is None:
            return False
        closing = attempt.snapshot(_nothing, now=self._monotonic(), at=self._wall(), closed=reason)
        self._outbox.store(attempt, closing, then=then)
        return True


def _nothing(seq_id: str) -> Generated:
    raise AssertionError(f"the Engine has never got {seq_id}")
