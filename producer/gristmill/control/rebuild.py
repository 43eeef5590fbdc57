"""Finds the truth again in the Store, for a Ledger that is empty or older than it (DESIGN rule 9).

Nothing else may run on the Ledger meanwhile. What no Store holds stays lost: API keys, webhook
endpoints, quotas. To repeat it is harmless.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from gristmill.control.accept import accept_unheard, apply
from gristmill.control.base import Control, read_batch
from gristmill.control.ending import read_end
from gristmill.control.ingested import Ingested, read_ingested
from gristmill.control.rebuild_files import is_stored, rebuild_files
from gristmill.control.rebuild_shards import read_slices
from gristmill.control.submit import UNDECIDED
from gristmill.errors import CorruptDocument, KeyNotFound, UsageError
from gristmill.ledger import batches, life, restore, tenants
from gristmill.ledger.batch import Batch, Submission
from gristmill.ledger.status import ENDS, BatchStatus, FreezeReason
from gristmill.stores.keys import batch_key, frozen_key, stop_key
from gristmill.stores.segments import read_segment
from gristmill.types import Bell, Endpoint

log = logging.getLogger(__name__)

_SEGMENTS_AT_ONCE = 64


@dataclass(slots=True)
class Rebuilt:
    """How many of what was found. `num_known` had ended in the Ledger already."""

    num_known: int = 0
    num_ended: int = 0
    num_open: int = 0
    num_of_runs: int = 0
    num_files: int = 0
    num_lost_batches: int = 0
    num_lost_files: int = 0


def rebuild(control: Control) -> Rebuilt:
    """Bring the Ledger to what the Store says of every tenant's batches and files.

    Batches that had not ended go on as soon as a control side runs. Raises UsageError for a
    Store that is not that of the Ledger, CorruptDocument for what the Store has lost.
    """
    found = set(_described(control))
    with control.ledger.read() as conn:
        known = set(restore.list_batch_ids(conn))
    if known and not known & found:
        raise UsageError(
            f"The ledger knows {len(known)} batches, and the store has none of them. Name the "
            "store that belongs to this ledger."
        )
    rebuilt = Rebuilt()
    for tenant_id, batch_id in sorted(found):
        _rebuild_batch(control, tenant_id, batch_id, rebuilt)
    for tenant_id, batch_id in sorted(known - found):
        # Its description goes first when a batch is deleted.
        with control.ledger.write() as conn:
            restore.lose_batch(conn, tenant_id, batch_id, now=control.now)
        rebuilt.num_lost_batches += 1
    rebuilt.num_files, rebuilt.num_lost_files = rebuild_files(control, found)
    return rebuilt


def _described(control: Control) -> Iterator[tuple[str, str]]:
    for key in control.store.list("t/"):
        match key.split("/"):
            case ["t", tenant_id, "b", batch_id, "batch.json"]:
                yield tenant_id, batch_id


def _rebuild_batch(control: Control, tenant_id: str, batch_id: str, rebuilt: Rebuilt) -> None:
    description = _read_json(control, batch_key(tenant_id, batch_id))
    if description.get("input_file_id") is None:
        rebuilt.num_of_runs += 1  # of `gristmill run`, which has a ledger of its own
        return
    with control.ledger.read() as conn:
        row = life.read_row(conn, tenant_id, batch_id)
    if row is not None and (row["status"] in ENDS or row["deleted_at"] is not None):
        rebuilt.num_known += 1
        return
    end = read_end(control.store, tenant_id, batch_id)
    if end is not None:
        of_batch = [file for file in end.files if is_stored(control, tenant_id, file.id)]
        with control.ledger.write() as conn:
            tenants.ensure(conn, tenant_id, now=control.now)
            # Its rows are read from its files from now on.
            restore.put_ended(conn, end.row, of_batch, remove_work_at=control.now)
        rebuilt.num_ended += 1
        return
    if row is None:
        _create(control, description)
    batch = read_batch(control, tenant_id, batch_id)
    _restore_work(control, batch)
    log.info("batch found tenant=%s batch=%s", tenant_id, batch_id)
    rebuilt.num_open += 1


def _create(control: Control, description: dict[str, Any]) -> None:
    asked = {
        field.name: description[field.name]
        for field in fields(Submission)
        if field.name in description
    }
    asked["endpoint"] = Endpoint(asked["endpoint"])
    with control.ledger.write() as conn:
        tenants.ensure(conn, description["tenant_id"], now=control.now)
        batches.create(
            conn,
            description["tenant_id"],
            description["id"],
            run_id=description["run_id"],
            model=UNDECIDED,
            seed=description["seed"],
            input_fingerprint=description["input_file_id"],
            options=description["options"],
            created_at=description["created_at"],
            expires_at=description["expires_at"],
            submission=Submission(**asked),
        )


def _restore_work(control: Control, batch: Batch) -> None:
    """Shards, Segments and, if the batch was stopped or frozen, that it was."""
    where = batch.tenant_id, batch.id, batch.run_id
    ingested = read_ingested(control.store, *where)
    frozen = _read_frozen(control, batch)
    reason = FreezeReason(frozen["reason"]) if frozen else _stop_reason(control, batch)
    if ingested is not None:
        # A Ledger that knows the Shards keeps the order in which it has accepted Segments, unless
        # a later one was frozen.
        if frozen or batch.status is BatchStatus.VALIDATING or batch.in_progress_at is None:
            _restore_shards(control, batch, ingested)
        if frozen:
            _accept_frozen(control, batch, frozen["segments"])
        else:
            accept_unheard(control, read_batch(control, batch.tenant_id, batch.id))
    if reason is not None:
        with control.ledger.write() as conn:
            if reason is FreezeReason.CANCELLED:
                batches.transition(
                    conn, batch.tenant_id, batch.id, BatchStatus.CANCELLING, control.now
                )
            batches.freeze(conn, batch.tenant_id, batch.id, reason, control.now)


def _restore_shards(control: Control, batch: Batch, ingested: Ingested) -> None:
    slices = read_slices(control.store, batch, ingested)
    with control.ledger.write() as conn:
        restore.put_ingested(
            conn,
            batch,
            slices,
            endpoint=ingested.endpoint,
            model=ingested.model,
            options=ingested.options,
            total=ingested.total,
            now=control.now,
        )


def _accept_frozen(control: Control, batch: Batch, entries: list[list[Any]]) -> None:
    """The Segments that count, in the order that was frozen."""
    for start in range(0, len(entries), _SEGMENTS_AT_ONCE):
        segments = []
        for _, shard_n, attempt_id, seq in entries[start : start + _SEGMENTS_AT_ONCE]:
            bell = Bell(batch.tenant_id, batch.id, batch.run_id, shard_n, attempt_id, seq)
            segment = read_segment(control.store, bell)
            if segment is None:
                raise CorruptDocument(
                    f"The store has lost the Segment {seq} of Shard {shard_n} of {batch.id}, "
                    "which counts. Restore it from a copy."
                )
            segments.append(segment)
        with control.ledger.write() as conn:
            current = batches.get(conn, batch.tenant_id, batch.id, for_update=True)
            assert current is not None, "a batch that is being restored is there"
            apply(control, conn, current, segments)


def _read_frozen(control: Control, batch: Batch) -> dict[str, Any] | None:
    try:
        return _read_json(control, frozen_key(batch.tenant_id, batch.id, batch.run_id))
    except KeyNotFound:
        return None


def _stop_reason(control: Control, batch: Batch) -> FreezeReason | None:
    """Why a batch was stopped that was not frozen yet."""
    try:
        return FreezeReason(control.store.get(stop_key(batch.tenant_id, batch.id)).decode())
    except KeyNotFound:
        return None


def _read_json(control: Control, key: str) -> dict[str, Any]:
    try:
        document = json.loads(control.store.get(key))
    except ValueError as error:
        raise CorruptDocument(f"{key} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise CorruptDocument(f"{key} holds no JSON object.")
    return document
