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
from gristmill.control.records import remove_old_records
from gristmill.ledger import files, life
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


def remove_unneeded(control: Control) -> None:
    """A bounded part of what is due; for the sweep. Raises StoreError."""
    _remove_expired_files(control)
    _remove_work(control)
    _remove_unfinished(control)
    remove_old_records(control)


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


def _remove_unfinished(control: Control) -> None:
    name, now = "remove_unfinished", control.now
    with control.ledger.read() as conn:
        if not life.is_chore_due(conn, name, now=now):
            return
    with control.ledger.write() as conn:
        is_ours = life.claim_chore(conn, name, now=now, every_s=_UNFINISHED_EVERY_S)
    if is_ours:
        num_removed = control.store.remove_unfinished(_UNFINISHED_AFTER_S)
        log.info("unfinished writes removed num=%d", num_removed)
