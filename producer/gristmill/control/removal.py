"""Removes what nothing needs any more: expired files, the work of ended batches, broken uploads.

The Ledger says what is due until the Store has lost it, so a kill in the middle leaves nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

from gristmill import crash_points
from gristmill.control.base import Control
from gristmill.control.ending import write_end
from gristmill.ledger import audit, estimates, files, idempotency, life, sessions, webhook_events
from gristmill.ledger.batch import Batch
from gristmill.stores.keys import batch_key, batch_prefix, end_key, file_key

log = logging.getLogger(__name__)

#: Workers may still write to a batch that is deleted just after it was cancelled. They hear of
#: the stop with the next renewal of their Leases.
WRITE_GRACE_S = 3600
#: Objects that one call removes; the next one goes on.
_MAX_OBJECTS = 200
_MAX_BATCHES = 20
_UNFINISHED_EVERY_S = 6 * 3600
_UNFINISHED_AFTER_S = 24 * 3600
#: Events of webhooks, with their deliveries.
_EVENTS_LIFETIME_S = 30 * 24 * 3600
_RECORDS_EVERY_S = 600
_MAX_RECORDS = 10_000


def remove_unneeded(control: Control) -> None:
    """A bounded part of what is due; for the sweep. Raises StoreError."""
    _remove_events(control)
    if _is_time_to(control, "remove_records", every_s=_RECORDS_EVERY_S):
        _remove_records(control)
    # What follows needs the Store, which may be away.
    _remove_expired_files(control)
    _remove_work(control)
    if _is_time_to(control, "remove_unfinished", every_s=_UNFINISHED_EVERY_S):
        num_removed = control.store.remove_unfinished(_UNFINISHED_AFTER_S)
        log.info("unfinished writes removed num=%d", num_removed)


def _remove_expired_files(control: Control) -> None:
    """Nobody may read them any more. One that a batch still has to read is waited for."""
    with control.ledger.read() as conn:
        expired = files.list_expired(conn, now=control.now)
        unused = [f for f in expired if not files.is_being_read(conn, f.tenant_id, f.id)]
    for file in unused:
        control.store.delete(file_key(file.tenant_id, file.id))
        with control.ledger.write() as conn:
            files.delete(conn, file.tenant_id, file.id, now=control.now)
        log.info("file expired tenant=%s file=%s", file.tenant_id, file.id)


def _remove_work(control: Control) -> None:
    """Shards, Segments and pieces of result files; of a deleted batch all that the Store has."""
    with control.ledger.read() as conn:
        due = life.list_to_remove(conn, now=control.now, limit=_MAX_BATCHES)
    room = _MAX_OBJECTS
    for batch in due:
        if batch.deleted_at is None:
            write_end(control, batch.tenant_id, batch.id)
        keys = list(islice(_unneeded_keys(control, batch), room))
        for key in keys:
            control.store.delete(key)
            crash_points.at("removing", batch=batch.id, key=key)
        room -= len(keys)
        if room == 0:
            return
        with control.ledger.write() as conn:
            life.forget_work(conn, batch)
        log.info("work removed batch=%s", batch.id)


def _unneeded_keys(control: Control, batch: Batch) -> Iterator[str]:
    kept = set()
    if batch.deleted_at is None:
        kept = {batch_key(batch.tenant_id, batch.id), end_key(batch.tenant_id, batch.id)}
    for key in control.store.list(batch_prefix(batch.tenant_id, batch.id)):
        if key not in kept:
            yield key


def _remove_events(control: Control) -> None:
    with control.ledger.read() as conn:
        old = webhook_events.list_old(conn, before=control.now - _EVENTS_LIFETIME_S)
    if old:
        with control.ledger.write() as conn:
            for event in old:
                webhook_events.remove(conn, event)


def _remove_records(control: Control) -> None:
    """Estimates, entries of the audit log, keys of requests, sessions that were logged out of."""
    now = control.now
    before = now - control.settings.audit_lifetime_s
    with control.ledger.write() as conn:
        estimates.remove_expired(conn, now=now, limit=_MAX_RECORDS)
        audit.remove_older(conn, created_before=before, limit=_MAX_RECORDS)
        idempotency.remove_older(conn, now=now, limit=_MAX_RECORDS)
        sessions.forget_ended(conn, now=now, limit=_MAX_RECORDS)


def _is_time_to(control: Control, name: str, *, every_s: int) -> bool:
    """Of what some process does now and then for all of them: whether this one does it now."""
    with control.ledger.read() as conn:
        if not life.is_chore_due(conn, name, now=control.now):
            return False
    with control.ledger.write() as conn:
        return life.claim_chore(conn, name, now=control.now, every_s=every_s)
