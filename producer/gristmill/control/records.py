"""Removes records that are too old: entries of the audit log, estimates."""

from __future__ import annotations

from gristmill.control.base import Control
from gristmill.ledger import audit, estimates, life

_EVERY_S = 600
_MAX_EVENTS = 10_000


def remove_old_records(control: Control) -> None:
    """For the sweep: now and then, a bounded number."""
    name, now = "remove_records", control.now
    with control.ledger.read() as conn:
        if not life.is_chore_due(conn, name, now=now):
            return
    with control.ledger.write() as conn:
        if life.claim_chore(conn, name, now=now, every_s=_EVERY_S):
            estimates.remove_expired(conn, now=now)
            before = now - control.settings.audit_lifetime_s
            audit.remove_older(conn, created_before=before, limit=_MAX_EVENTS)
