"""The rows of a batch that count, in the order of their acceptance, as lines of result files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gristmill.control.accept import new_results
from gristmill.control.lines import LineWriter
from gristmill.control.must_read import read_accepted, read_shard
from gristmill.control.receipt import Origin
from gristmill.ledger import segments
from gristmill.ledger.batch import Batch
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.segments import Accepted
from gristmill.ledger.shards import Bitmap
from gristmill.stores.base import Store
from gristmill.types import Bell, RowResult, Segment, Shard

_SEGMENTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Cursor:
    """A row: its Segment's acceptance number, and its place among that Segment's rows, from 1.

    `trail` stands for the Segments that have the numbers until then. `Cursor()` stands before all.
    """

    number: int = 0
    position: int = 0
    trail: str = segments.NO_TRAIL


def is_of_this_order(ledger: Ledger, batch: Batch, cursor: Cursor) -> bool:
    """Whether the Segments up to the cursor are still those that it was made behind.

    They are not when a Ledger was rebuilt, and has accepted them in another order.
    """
    if cursor == Cursor():
        return True
    with ledger.read() as conn:
        found = segments.trail_at(conn, batch.tenant_id, batch.id, cursor.number)
    return found == cursor.trail


def accepted_lines(
    ledger: Ledger, store: Store, batch: Batch, after: Cursor
) -> Iterator[tuple[Cursor, bytes]]:
    """Lines behind a cursor, of what was accepted when `batch` was read, in constant memory.

    Raises CorruptDocument for what the Store has lost.
    """
    if batch.endpoint is None or batch.in_progress_at is None:
        return
    reader = _Reader(ledger, store, batch)
    # The Segment of the cursor again: there may be more rows in it.
    number = after.number - 1
    while True:
        with ledger.read() as conn:
            some = segments.list_accepted(
                conn, batch.tenant_id, batch.id, after_number=number, limit=_SEGMENTS_AT_ONCE
            )
        for accepted in some:
            if accepted.number > batch.last_accepted:
                return
            lines = reader.lines(accepted)
            for position, line in enumerate(lines, 1):
                at = Cursor(accepted.number, position, accepted.trail)
                if (at.number, at.position) > (after.number, after.position):
                    yield at, line
        if len(some) < _SEGMENTS_AT_ONCE:
            return
        number = some[-1].number


class _Reader:
    def __init__(self, ledger: Ledger, store: Store, batch: Batch) -> None:
        assert batch.endpoint is not None, "asked for by the caller"
        self._ledger = ledger
        self._store = store
        self._batch = batch
        self._lines = LineWriter(batch.id, batch.endpoint, batch.model)
        #: The last one that was read: Segments of one Shard often follow each other.
        self._shard: Shard | None = None

    def lines(self, accepted: Accepted) -> Iterator[bytes]:
        """Those of a Segment that count, in its own order."""
        segment = read_accepted(self._store, self._bell(accepted))
        origin = Origin(accepted.attempt_id, max(segment.mark.order, 1), segment.engine_version)
        for result in self._counting(accepted, segment):
            if result.error:
                for row in result.rows:
                    yield self._lines.failure(row, result.error)
                continue
            shard = self._read_shard(accepted.shard_n)
            of_result = replace(origin, template_hash=shard.template_hash)
            for row in result.rows:
                yield self._lines.answer(row, result, shard.jobs[result.job_idx], of_result)

    def _counting(self, accepted: Accepted, segment: Segment) -> Iterator[RowResult]:
        if accepted.all_count:
            yield from segment.results
            return
        batch = self._batch
        with self._ledger.read() as conn:
            earlier = segments.list_earlier(conn, batch.tenant_id, batch.id, batch.run_id, accepted)
        found = [read_accepted(self._store, bell) for bell in earlier]
        num_jobs = 1 + max(r.job_idx for s in (*found, segment) for r in s.results)
        seen = Bitmap.empty(num_jobs)
        for before in found:
            for _ in new_results(before, seen, num_jobs):
                pass
        yield from new_results(segment, seen, num_jobs)

    def _bell(self, accepted: Accepted) -> Bell:
        batch = self._batch
        return Bell(
            batch.tenant_id,
            batch.id,
            batch.run_id,
            accepted.shard_n,
            accepted.attempt_id,
            accepted.seq,
        )

    def _read_shard(self, n: int) -> Shard:
        if self._shard is None or self._shard.n != n:
            self._shard = read_shard(self._store, self._batch, n, for_lines=True)
        return self._shard
