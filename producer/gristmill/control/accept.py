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
from gristmill.control.counted import Counted
from gristmill.control.fleet import record_beats
from gristmill.control.observed import span_of, tell_counted, timed
from gristmill.errors import CorruptDocument, KeyNotFound, UnsupportedFormat
from gristmill.fleet import WorkerBeat
from gristmill.ledger import batches, courses, paces, segments, shards, webhook_events
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


@timed("accept")
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
    """Accept what lies in the Store and no Bell told of; whether there was anything.

    What cannot be read is nothing: no worker will ever mend it, and it shows no sign of life.
    """
    found = False
    listed = list_segments(control.store, batch.tenant_id, batch.id, batch.run_id, shard_n)
    for some in _some_at_a_time(listed):
        unheard = _unknown(control, some)
        if unheard:
            _accept_of_batch(control, batch.tenant_id, batch.id, unheard, are_fresh=False)
            found = found or len(_unknown(control, unheard)) < len(unheard)
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
) -> Counted:
    """Let Segments count, in a transaction that has read the batch `for_update`.

    Those that are fresh were stored a moment ago, so that they tell how fast workers are.
    """
    number, counted = batch.last_accepted, Counted()
    ring_at = control.now + int(control.settings.resend_after_s)
    trail = segments.trail_at(conn, batch.tenant_id, batch.id, number) or segments.NO_TRAIL
    accepted_now = []
    # Shard by Shard in their order, as dispatch locks them.
    for segment in sorted(found, key=lambda segment: segment.shard_n):
        bell = bell_of(segment)
        shard = shards.get(conn, batch.tenant_id, batch.id, segment.shard_n)
        if shard is None or segments.is_known(conn, bell):
            continue
        accepted = Bitmap(shard.accepted)
        results = list(new_results(segment, accepted, shard.num_jobs))
        counted.take(batch, shard, segment, results)
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
        accepted_now.append((number, bell.shard_n, bell.attempt_id, bell.seq, jobs))
    if number > batch.last_accepted:
        _record(control, conn, batch, counted, number=number, are_fresh=are_fresh)
        crash_points.at("accepting", batch=batch.id, segments=accepted_now)
    return counted


def _record(
    control: Control,
    conn: Connection,
    batch: Batch,
    counted: Counted,
    *,
    number: int,
    are_fresh: bool,
) -> None:
    """Add what counts to the batch, and to all that is added up beside it."""
    completed, failed, now = counted.num_completed, counted.num_failed, control.now
    batches.record_accepted(
        conn,
        batch,
        completed=completed,
        failed=failed,
        usage=counted.usage,
        ttft=counted.ttft,
        itl=counted.itl,
        times=counted.times,
        last_accepted=number,
        budget_used_at=_budget_used_at(control, batch, counted.usage),
    )
    webhook_events.record_progress(conn, batch, completed=completed, failed=failed, now=now)
    usage_by_day.add(conn, batch, now=now, completed=completed, failed=failed, used=counted.usage)
    courses.record(
        conn,
        batch,
        now=now,
        num_rows=counted.num_rows,
        used=counted.worked,
        failures=counted.failures,
    )
    paces.add_finished(conn, batch, num_tokens=counted.num_worked_tokens)
    if are_fresh:
        num_tokens = counted.num_worked_tokens
        paces.record(conn, batch, num_tokens=num_tokens, now_s=control.clock())


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
        with span_of(control, batch, "accept") as span:
            counted = apply(control, conn, batch, of_run, are_fresh=are_fresh)
            span.tell(segments=counted.num_segments, rows=counted.num_rows)
    crash_points.at("accepted", batch=batch_id)
    tell_counted(control, batch, counted)
    return counted.num_rows


def _unknown(control: Control, bells: Sequence[Bell]) -> list[Bell]:
    """Those that tell of a Segment that was not accepted yet, each once, in their order."""
    with control.ledger.read() as conn:
        return [bell for bell in dict.fromkeys(bells) if not segments.is_known(conn, bell)]


def _some_at_a_time(bells: Iterable[Bell]) -> Iterator[list[Bell]]:
    iterator = iter(bells)
    while some := list(islice(iterator, _MAX_SEGMENTS)):
        yield some
