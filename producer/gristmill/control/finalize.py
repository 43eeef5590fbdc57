"""Ends a batch: freeze, merge slice by slice, write the two files, publish them.

Every step can be repeated, and goes on after a kill where the Ledger says that it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import BinaryIO

from gristmill import crash_points
from gristmill.control.accept import accept_unheard
from gristmill.control.base import Control, read_batch
from gristmill.control.ending import remove_work_at, write_end
from gristmill.control.lines import derived_id
from gristmill.control.merge import lines_of_shard, merge_slice
from gristmill.control.observed import span_of, tell_end, timed
from gristmill.control.read_ahead import read_ahead
from gristmill.control.shard_lines import keep_lines
from gristmill.errors import CorruptDocument, KeyNotFound
from gristmill.ledger import batches, files, segments, shards
from gristmill.ledger.batch import Batch
from gristmill.ledger.due import list_mergeable, list_unwritten
from gristmill.ledger.status import OPEN, FreezeReason
from gristmill.stores.keys import file_key, frozen_key, merged_key, stop_key

_CHUNK_BYTES = 1 << 20
#: Batches that are tried for one slice: what is damaged shall not keep others waiting.
_MAX_CANDIDATES = 20


@timed("finalize")
def finalize(
    control: Control,
    tenant_id: str,
    batch_id: str,
    *,
    should_pause: Callable[[], bool] = lambda: False,
) -> bool:
    """Bring a frozen batch to its end; False when it paused between two slices."""
    batch = read_batch(control, tenant_id, batch_id)
    if batch.freeze_reason is None or batch.status not in OPEN:
        return True
    with span_of(control, batch, "finalize") as span:
        has_ended = _finalize(control, batch, should_pause)
        span.tell(has_ended=has_ended)
    return has_ended


def _finalize(control: Control, batch: Batch, should_pause: Callable[[], bool]) -> bool:
    # A batch that ended before its input was read has no rows, only an end.
    num_slices = 0 if batch.in_progress_at is None else batch.num_slices
    if num_slices and not _is_frozen_listed(control, batch):
        _write_frozen(control, batch)
    while batch.merged_slices < num_slices:
        if should_pause():
            return False
        _merge_next(control, batch)
        batch = read_batch(control, batch.tenant_id, batch.id)
    _publish(control, batch)
    return True


def merge_ahead(control: Control) -> bool:
    """Merge a slice of a running batch whose results are all there, which no other can change.

    So that little is left to do when the last row of a large batch is answered; where there is no
    such slice, the lines of Shards are kept that are done before the last ones. False when there
    is nothing to do.
    """
    with control.ledger.read() as conn:
        mergeable = list_mergeable(conn, limit=_MAX_CANDIDATES)
    for batch in mergeable:
        try:
            _merge_next(control, batch)
        except CorruptDocument:
            continue  # finalize says so, when it can be avoided no longer
        return True
    return _write_lines_ahead(control)


def _write_lines_ahead(control: Control) -> bool:
    with control.ledger.read() as conn:
        unwritten = list_unwritten(conn, limit=_MAX_CANDIDATES)
    num_written = 0
    for shard in unwritten:
        batch = read_batch(control, shard.tenant_id, shard.batch_id)
        try:
            keep_lines(control.store, batch, shard.n, lines_of_shard(control, batch, shard))
        except CorruptDocument:
            continue
        with control.ledger.write() as conn:
            shards.record_lines(conn, batch.tenant_id, batch.id, shard.n)
        num_written += 1
    return num_written > 0


def freeze(control: Control, batch: Batch, reason: FreezeReason) -> bool:
    """From now on no result of the batch is accepted; what lies in the Store was.

    False when there is nothing to freeze: it is frozen, or for COMPLETE not complete.
    """
    if reason is not FreezeReason.COMPLETE:
        # Workers read it with each renewal of their Leases, and stop.
        control.store.put(stop_key(batch.tenant_id, batch.id), reason.encode())
        accept_unheard(control, batch)
    with control.ledger.write() as conn:
        if reason is FreezeReason.COMPLETE and not shards.all_done(conn, batch.tenant_id, batch.id):
            return False
        is_frozen = batches.freeze(conn, batch.tenant_id, batch.id, reason, control.now)
        crash_points.at("freezing", batch=batch.id, reason=reason)
    crash_points.at("frozen", batch=batch.id, new=is_frozen)
    return is_frozen


def _is_frozen_listed(control: Control, batch: Batch) -> bool:
    return any(control.store.list(frozen_key(batch.tenant_id, batch.id, batch.run_id)))


def _write_frozen(control: Control, batch: Batch) -> None:
    """The Segments that count go to the Store, from which a lost Ledger can be rebuilt."""
    head = {"batch_id": batch.id, "run_id": batch.run_id, "reason": batch.freeze_reason}

    def chunks() -> Iterator[bytes]:
        yield json.dumps(head)[:-1].encode() + b',"segments":[\n'
        separator = ""
        with control.ledger.read() as conn:
            for entry in segments.stream_all(conn, batch.tenant_id, batch.id):
                yield f"{separator}{json.dumps(entry)}".encode()
                separator = ",\n"
        yield b"\n]}\n"

    control.store.put_stream(frozen_key(batch.tenant_id, batch.id, batch.run_id), chunks())
    crash_points.at("frozen-listed", batch=batch.id)


def _merge_next(control: Control, batch: Batch) -> None:
    slice_n = batch.merged_slices
    merged = merge_slice(control, batch, slice_n)
    for which, lines in (("output", merged.output), ("error", merged.error)):
        control.store.put(_merged_key(batch, slice_n, which), b"".join(lines))
        crash_points.at("slice-written", batch=batch.id, slice=slice_n, which=which)
    with control.ledger.write() as conn:
        batches.advance_merge(
            conn,
            batch,
            num_output_lines=len(merged.output),
            num_error_lines=len(merged.error),
        )
    crash_points.at("slice-merged", batch=batch.id, slice=slice_n)


def _publish(control: Control, batch: Batch) -> None:
    assert batch.num_output_lines == batch.completed and (
        batch.in_progress_at is None
        or batch.num_output_lines + batch.num_error_lines == batch.total
    ), f"batch {batch.id}: the lines of its files do not add up to its rows"
    output = _write_file(control, batch, "output") if batch.num_output_lines else None
    error = _write_file(control, batch, "error") if batch.num_error_lines else None
    with control.ledger.write() as conn:
        published = batches.publish(
            conn,
            batch,
            output_file_id=output.id if output else None,
            error_file_id=error.id if error else None,
            now=control.now,
            remove_work_at=remove_work_at(control, batch),
        )
        if published:
            for file in filter(None, (output, error)):
                files.add(conn, file)
        crash_points.at("publishing", batch=batch.id)
    crash_points.at("published", batch=batch.id)
    if published:
        tell_end(control, batch)
    if batch.input_file_id is not None:
        write_end(control, batch.tenant_id, batch.id)


def _write_file(control: Control, batch: Batch, which: str) -> files.File:
    file_id = derived_id("file-", batch.tenant_id, batch.id, which)
    digest = hashlib.sha256()

    def chunks() -> Generator[bytes, None, None]:
        for slice_n in range(batch.num_slices):
            with _open_merged(control, batch, slice_n, which) as piece:
                while chunk := piece.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    yield chunk

    with closing(read_ahead(chunks())) as ahead:
        num_bytes = control.store.put_stream(file_key(batch.tenant_id, file_id), ahead)
    crash_points.at("file-written", batch=batch.id, which=which)
    lifetime_s = batch.output_expires_after_s or control.settings.file_lifetime_s
    now = control.now
    return files.File(
        id=file_id,
        tenant_id=batch.tenant_id,
        purpose="batch_output",
        filename=f"{batch.id}_{which}.jsonl",
        num_bytes=num_bytes,
        created_at=now,
        # Those of `gristmill run` are its own business.
        expires_at=None if batch.input_file_id is None else now + lifetime_s,
        sha256=digest.hexdigest(),
    )


def _open_merged(control: Control, batch: Batch, slice_n: int, which: str) -> BinaryIO:
    key = _merged_key(batch, slice_n, which)
    try:
        return control.store.open(key)
    except KeyNotFound as error:
        raise CorruptDocument(
            f"{key} was merged and is no longer there: the store has lost it. Restore it from a "
            "copy, or run the batch again."
        ) from error


def _merged_key(batch: Batch, slice_n: int, which: str) -> str:
    return merged_key(batch.tenant_id, batch.id, batch.run_id, slice_n, which)
