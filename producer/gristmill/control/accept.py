"""Decides which results count: a row counts from the first accepted Segment that holds it.

A Bell twice, a Segment twice, two Attempts that finish the same Job: all have no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice

from sqlalchemy import Connection

from gristmill import crash_points
from gristmill.control.base import Control
from gristmill.control.budget import budget_of
from gristmill.control.fleet import record_beats
from gristmill.errors import CorruptDocument, KeyNotFound, UnsupportedFormat
from gristmill.fleet import WorkerBeat
from gristmill.histogram import Histogram
from gristmill.ledger import batches, paces, segments, shards, webhook_events
from gristmill.ledger import usage as usage_by_day
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import Bitmap
from gristmill.ledger.status import BatchStatus
from gristmill.message_wire import decode_news
from gristmill.stores.keys import shard_key
from gristmill.stores.segments import bell_of, list_segments, read_segment
from gristmill.types import Bell, RowResult, Segment, Usage
from gristmill.wire import decode_shard

log = logging.getLogger(__name__)

#: The Attempt that refused rows are answered by.
INGEST_ATTEMPT = "ingest"
#: Segments that are held in memory at once.
_MAX_SEGMENTS = 64
_ACCEPTING = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING)


def take_bells(control: Control, *, wait_s: float = 0.0) -> int:
    """Accept what the waiting Bells tell of, waiting for the first, and keep the beats of Workers
    that lie between them; how many messages there were.

    Raises CorruptDocument when one tells of a damaged Shard, and it is.
    """
    leases = control.queue.receive(control.control_lane, _MAX_SEGMENTS, wait_s)
    bells: list[Bell] = []
    beats: list[WorkerBeat] = []
    crash_points.at("heard", num_bells=len(leases))
    for lease in leases:
        try:
            news = decode_news(lease.body)
        except (CorruptDocument, UnsupportedFormat) as error:
            log.warning("message skipped reason=%s", error)
            continue
        if isinstance(news, Bell):
            bells.append(news)
        else:
            beats.append(news)
    accept(control, [bell for bell in bells if not bell.damaged])
    # Only now: a Bell whose acceptance was cut short comes back.
    control.queue.ack(*leases)
    crash_points.at("bells-acked")
    record_beats(control, beats)
    for bell in bells:
        if bell.damaged:
            check_shard(control, bell)
    return len(leases)


def accept(control: Control, bells: Iterable[Bell]) -> int:
    """Accept the Segments that Bells tell of, batch by batch; how many rows count newly."""

    def batch_of(bell: Bell) -> tuple[str, str]:
        return bell.tenant_id, bell.batch_id

    num_rows = 0
    for (tenant_id, batch_id), of_batch in groupby(sorted(bells, key=batch_of), key=batch_of):
        for some in _some_at_a_time(of_batch):
            num_rows += _accept_of_batch(control, tenant_id, batch_id, some, are_fresh=True)
    return num_rows


def check_shard(control: Control, bell: Bell) -> None:
    """Raises CorruptDocument when the Shard's document cannot be read here either."""
    key = shard_key(bell.tenant_id, bell.batch_id, bell.run_id, bell.shard_n)
    try:
        decode_shard(control.store.get(key))
    except CorruptDocument as error:
        raise CorruptDocument(
            f"The Shard {key} cannot be read: {error} Its rows can be neither answered nor named. "
            "Restore it from a copy, or start the batch anew."
        ) from error
    except (KeyNotFound, UnsupportedFormat):
        return  # its batch has ended, or its worker is of another version


def accept_unheard(control: Control, batch: Batch, shard_n: int | None = None) -> bool:
    """Accept what lies in the Store and no Bell told of; whether there was anything."""
    found = False
    listed = list_segments(control.store, batch.tenant_id, batch.id, batch.run_id, shard_n)
    for some in _some_at_a_time(listed):
        unheard = _unknown(control, some)
        if unheard:
            found = True
            _accept_of_batch(control, batch.tenant_id, batch.id, unheard, are_fresh=False)
    return found


def new_results(segment: Segment, accepted: Bitmap, num_jobs: int) -> Iterator[RowResult]:
    """The results of Jobs that have none yet, marking them; finalize follows the same rule."""
    for result in segment.results:
        if 0 <= result.job_idx < num_jobs and accepted.add(result.job_idx):
            yield result


def apply(
    control: Control,
    conn: Connection,
    batch: Batch,
    found: Sequence[Segment],
    *,
    are_fresh: bool = False,
) -> int:
    """Let Segments count, in a transaction that has read the batch `for_update`.

    Those that are fresh were stored a moment ago, so that they tell how fast workers are.
    """
    number, num_completed, num_failed = batch.last_accepted, 0, 0
    usage, worked, ttft, itl = Usage(), Usage(), Histogram(), Histogram()
    ring_at = control.now + int(control.settings.resend_after_s)
    trail = segments.trail_at(conn, batch.tenant_id, batch.id, number) or segments.NO_TRAIL
    counted = []
    for segment in found:
        bell = bell_of(segment)
        shard = shards.get(conn, batch.tenant_id, batch.id, segment.shard_n)
        if shard is None or segments.is_known(conn, bell):
            continue
        accepted = Bitmap(shard.accepted)
        results = list(new_results(segment, accepted, shard.num_jobs))
        for result in results:
            num_rows = len(result.rows)
            num_completed += 0 if result.error else num_rows
            num_failed += num_rows if result.error else 0
            usage += result.usage.times(num_rows)
            worked += result.usage
        if results:
            ttft.merge(segment.ttft)
            itl.merge(segment.itl)
        number, trail = number + 1, segments.trail_behind(trail, bell)
        segments.add(
            conn,
            bell,
            number=number,
            num_results=len(segment.results),
            num_counted=len(results),
            trail=trail,
        )
        shards.record_accepted(conn, shard, accepted, num_new=len(results), ring_at=ring_at)
        jobs = [result.job_idx for result in results]
        counted.append((number, bell.shard_n, bell.attempt_id, bell.seq, jobs))
    if number > batch.last_accepted:
        batches.record_accepted(
            conn,
            batch,
            completed=num_completed,
            failed=num_failed,
            usage=usage,
            ttft=ttft,
            itl=itl,
            last_accepted=number,
            budget_used_at=_budget_used_at(control, batch, usage),
        )
        webhook_events.record_progress(
            conn, batch, completed=num_completed, failed=num_failed, now=control.now
        )
        usage_by_day.add(
            conn, batch, now=control.now, completed=num_completed, failed=num_failed, used=usage
        )
        num_tokens = worked.prompt_tokens + worked.completion_tokens
        paces.add_finished(conn, batch, num_tokens=num_tokens)
        if are_fresh:
            paces.record(conn, batch, num_tokens=num_tokens, now_s=control.clock())
        crash_points.at("accepting", batch=batch.id, segments=counted)
    return num_completed + num_failed


def _budget_used_at(control: Control, batch: Batch, new: Usage) -> int | None:
    if batch.budget_used_at is None and budget_of(batch).is_used_up(batch.usage + new):
        return control.now
    return batch.budget_used_at


def _accept_of_batch(
    control: Control, tenant_id: str, batch_id: str, bells: Sequence[Bell], *, are_fresh: bool
) -> int:
    # The Store is read before the transaction begins, so that the Ledger is not held up by it.
    found = [
        segment
        for bell in _unknown(control, bells)
        if (segment := read_segment(control.store, bell))
    ]
    if not found:
        return 0
    with control.ledger.write() as conn:
        batch = batches.get(conn, tenant_id, batch_id, for_update=True)
        if batch is None or batch.freeze_reason or batch.status not in _ACCEPTING:
            return 0
        of_run = [segment for segment in found if segment.run_id == batch.run_id]
        num_rows = apply(control, conn, batch, of_run, are_fresh=are_fresh)
    crash_points.at("accepted", batch=batch_id)
    return num_rows


def _unknown(control: Control, bells: Sequence[Bell]) -> list[Bell]:
    """Those that tell of a Segment that was not accepted yet, each once, in their order."""
    with control.ledger.read() as conn:
        return [bell for bell in dict.fromkeys(bells) if not segments.is_known(conn, bell)]


def _some_at_a_time(bells: Iterable[Bell]) -> Iterator[list[Bell]]:
    iterator = iter(bells)
    while some := list(islice(iterator, _MAX_SEGMENTS)):
        yield some
