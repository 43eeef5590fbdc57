"""What the control side does about Workers: keeps their newest beats, forgets those of old."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gristmill.control.base import Control
from gristmill.errors import QueueError
from gristmill.fleet import WorkerBeat, lane_of
from gristmill.ledger import life, workers

log = logging.getLogger(__name__)

_FORGET_EVERY_S = 600


def record_beats(control: Control, beats: Sequence[WorkerBeat]) -> int:
    """Keep what Workers tell of themselves; how many beats told something new."""
    if not beats:
        return 0
    with control.ledger.write() as conn:
        return workers.put_beats(conn, beats, now=control.now)


def forget_workers(control: Control) -> None:
    """Now and then: those not heard of for a day, and the Lanes of pools that nobody is left of."""
    with control.ledger.read() as conn:
        if not life.is_chore_due(conn, "forget_workers", now=control.now):
            return
    with control.ledger.write() as conn:
        if not life.claim_chore(conn, "forget_workers", now=control.now, every_s=_FORGET_EVERY_S):
            return
        forgotten = workers.forget_old(conn, now=control.now)
    if not forgotten:
        return
    log.info("workers forgotten num=%d", len(forgotten))
    with control.ledger.read() as conn:
        kept = {lane_of(known.card) for known in workers.list_workers(conn)}
    for lane in sorted({lane_of(known.card) for known in forgotten} - kept):
        # What a queue cannot take away costs nothing there.
        try:
            control.queue.remove_lane(lane)
        except QueueError as error:
            log.warning("lane left behind lane=%s reason=%s", lane, error)
