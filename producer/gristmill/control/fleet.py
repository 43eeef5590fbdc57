"""What the control side does about Workers: keeps their newest beats, forgets those of old."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gristmill.control.base import Control
from gristmill.fleet import WorkerBeat
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
    """Now and then: those that were not heard of for a day, and more where many have gone."""
    with control.ledger.read() as conn:
        if not life.is_chore_due(conn, "forget_workers", now=control.now):
            return
    with control.ledger.write() as conn:
        if life.claim_chore(conn, "forget_workers", now=control.now, every_s=_FORGET_EVERY_S):
            forgotten = workers.forget_old(conn, now=control.now)
            if forgotten:
                log.info("workers forgotten num=%d", len(forgotten))
