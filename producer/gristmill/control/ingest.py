"""From an input file to Shards in the Store, window by window, with a cursor in the Ledger."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any, BinaryIO

from gristmill import crash_points
from gristmill.control.accept import INGEST_ATTEMPT, apply
from gristmill.control.base import Control, read_batch
from gristmill.control.counted import Counted
from gristmill.control.ending import remove_work_at
from gristmill.control.ingested import write_ingested
from gristmill.control.observed import span_of, tell_counted, tell_read, tell_refused, timed
from gristmill.control.room import check_room_for_rows
from gristmill.control.submit import SHARD_SETTINGS
from gristmill.errors import BatchInvalid
from gristmill.ledger import batches, shards, usage
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import NewShard
from gristmill.ledger.status import BatchStatus
from gristmill.models import Model
from gristmill.needs import class_of, needs_of, needs_together, size_class
from gristmill.requests.prepare import Cursor, Refusal, Window, prepare
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings
from gristmill.stores.keys import batch_key, segment_key, shard_key
from gristmill.stores.segments import bell_of
from gristmill.types import Endpoint, Job, ModelPin, RowResult, Segment, Shard
from gristmill.wire import encode_segment, encode_shard

#: Output tokens that a Job is expected to need at most, when Shards are cut.
_MAX_EXPECTED_OUTPUT = 256


def create_batch(
    control: Control,
    tenant_id: str,
    batch_id: str,
    *,
    model: ModelPin,
    seed: str,
    input_fingerprint: str,
    options: Mapping[str, Any],
    expires_at: int | None = None,
) -> Batch:
    """A new batch, its description in the Store first. `options` override settings in ingest."""
    created_at, run_id = control.now, f"run-{secrets.token_hex(8)}"
    options = {**{name: getattr(control.settings, name) for name in SHARD_SETTINGS}, **options}
    description = {
        "format": 1,
        "id": batch_id,
        "tenant_id": tenant_id,
        "run_id": run_id,
        "model": asdict(model),
        "seed": seed,
        "input_fingerprint": input_fingerprint,
        "options": options,
        "created_at": created_at,
        "expires_at": expires_at,
    }
    control.store.put(batch_key(tenant_id, batch_id), json.dumps(description, indent=1).encode())
    crash_points.at("batch-described", batch=batch_id)
    with control.ledger.write() as conn:
        batches.create(
            conn,
            tenant_id,
            batch_id,
            run_id=run_id,
            model=model,
            seed=seed,
            input_fingerprint=input_fingerprint,
            options=options,
            created_at=created_at,
            expires_at=expires_at,
        )
    return read_batch(control, tenant_id, batch_id)


@timed("ingest")
def ingest_slice(
    control: Control,
    tenant_id: str,
    batch_id: str,
    source_opener: Callable[[], BinaryIO],
    model: Model,
    *,
    should_pause: Callable[[], bool],
    tokeniser: Tokeniser | None = None,
) -> bool:
    """Read on from the cursor until the end or a pause (asked after each window); whether done."""
    batch = read_batch(control, tenant_id, batch_id)
    reading = closing(_windows(control, batch, source_opener, model, tokeniser))
    with span_of(control, batch, "ingest"), reading as windows:
        return ingest_windows(control, batch, windows, should_pause=should_pause)


def ingest_windows(
    control: Control, batch: Batch, windows: Iterable[Window], *, should_pause: Callable[[], bool]
) -> bool:
    """Take what lies behind the batch's cursor, window by window; whether that was all of it."""
    if batch.status is not BatchStatus.VALIDATING or batch.freeze_reason:
        return True
    try:
        for window in windows:
            if not _store_window(control, batch, window):
                return False
            batch = read_batch(control, batch.tenant_id, batch.id)
            check_room_for_rows(control, batch)
            if should_pause():
                return False
    except BatchInvalid as invalid:
        with control.ledger.write() as conn:
            usage.forget(conn, batch.tenant_id, batch.id)
            batches.fail_validation(
                conn,
                batch.tenant_id,
                batch.id,
                errors=invalid.errors,
                num_errors=invalid.num_errors,
                now=control.now,
                remove_work_at=remove_work_at(control, batch),
            )
        tell_refused(control)
        return True
    write_ingested(control, batch)
    with control.ledger.write() as conn:
        batches.transition(conn, batch.tenant_id, batch.id, BatchStatus.IN_PROGRESS, control.now)
    crash_points.at("ingested", batch=batch.id)
    return True


def _windows(
    control: Control,
    batch: Batch,
    source_opener: Callable[[], BinaryIO],
    model: Model,
    tokeniser: Tokeniser | None,
) -> Generator[Window, None, None]:
    with source_opener() as source:
        yield from prepare(
            source,
            model=model,
            tokeniser=tokeniser,
            settings=_settings_of(control, batch),
            batch_seed=batch.seed,
            endpoint=batch.endpoint,
            start=Cursor(
                byte_offset=batch.ingest_byte_offset,
                line_no=batch.ingest_line_no,
                row_idx=batch.ingest_row_idx,
            ),
        )


def _settings_of(control: Control, batch: Batch) -> Settings:
    """The control side's settings, with those that the batch was made with."""
    known = {name: value for name, value in batch.options.items() if name in Settings.model_fields}
    return control.settings.model_copy(update=known)


def _store_window(control: Control, batch: Batch, window: Window) -> bool:
    """One slice: its Shards into the Store, then all of it into the Ledger at once.

    False when another ingest was faster. A crash between the two leaves objects in the Store that
    the next try overwrites with the same bytes.
    """
    new = []
    for n, jobs in enumerate(cut(window.jobs, _settings_of(control, batch)), batch.num_shards):
        shard = Shard(
            *(batch.tenant_id, batch.id, batch.run_id, n, window.endpoint, batch.model, jobs),
            template_hash=window.template_hash,
        )
        control.store.put(
            shard_key(batch.tenant_id, batch.id, batch.run_id, n), encode_shard(shard)
        )
        crash_points.at("shard-written", batch=batch.id, shard=n, rows=lambda of=jobs: _rows(of))
        new.append(new_shard(shard))
    refused = None
    if window.refused:
        refused = _refusals(batch, batch.num_shards + len(new), window.refused)
        control.store.put(segment_key(bell_of(refused)), encode_segment(refused))
        new.append(NewShard(refused.shard_n, len(window.refused), len(window.refused), 0))
    return _record_window(control, batch, window.cursor, window.endpoint, new, refused)


def _record_window(
    control: Control,
    batch: Batch,
    cursor: Cursor,
    endpoint: Endpoint,
    new: list[NewShard],
    refused: Segment | None,
) -> bool:
    counted = Counted()
    with control.ledger.write() as conn:
        advanced = batches.advance_ingest(
            conn,
            batch,
            endpoint=endpoint,
            byte_offset=cursor.byte_offset,
            line_no=cursor.line_no,
            row_idx=cursor.row_idx,
            num_new_shards=len(new),
            num_new_tokens=sum(shard.num_expected_tokens for shard in new),
        )
        if not advanced:
            return False
        shards.add(conn, batch.tenant_id, batch.id, batch.num_slices, new)
        if refused is not None:
            current = batches.get(conn, batch.tenant_id, batch.id, for_update=True)
            assert current is not None, "a batch that was just changed is there"
            counted = apply(control, conn, current, [refused])
        crash_points.at("window-recording", batch=batch.id)
    crash_points.at("window-recorded", batch=batch.id)
    tell_read(control, batch, num_rows=cursor.row_idx - batch.ingest_row_idx)
    tell_counted(control, batch, counted)
    return True


def _refusals(batch: Batch, n: int, refused: Iterable[Refusal]) -> Segment:
    """A Shard without Jobs: its only Segment says why each of its rows was refused."""
    return Segment(
        tenant_id=batch.tenant_id,
        batch_id=batch.id,
        run_id=batch.run_id,
        shard_n=n,
        attempt_id=INGEST_ATTEMPT,
        seq=0,
        results=tuple(
            RowResult(idx, (refusal.row,), error=refusal.error, finished_at=batch.created_at)
            for idx, refusal in enumerate(refused)
        ),
    )


def _rows(jobs: Iterable[Job]) -> list[list[int]]:
    """Of each Job the rows that it answers."""
    return [[row.idx for row in job.rows] for job in jobs]


def new_shard(shard: Shard) -> NewShard:
    """What the Ledger is to know of a Shard."""
    needs = needs_together(map(needs_of, shard.jobs))
    return NewShard(
        shard.n,
        len(shard.jobs),
        num_rows=sum(len(job.rows) for job in shard.jobs),
        num_prompt_tokens=shard.pointer.num_prompt_tokens,
        num_expected_tokens=sum(map(expected_tokens, shard.jobs)),
        size_class=size_class(needs),
        max_row_tokens=needs.max_row_tokens,
        least_row_tokens=needs.least_row_tokens,
    )


def expected_tokens(job: Job) -> int:
    """Of its prompts, and those that it is expected to answer."""
    num_choices = len(job.prompts) * job.params.n
    expected_output = min(job.params.max_tokens, _MAX_EXPECTED_OUTPUT)
    return job.num_prompt_tokens + num_choices * expected_output


def cut(jobs: Iterable[Job], settings: Settings) -> Iterator[tuple[Job, ...]]:
    """Jobs of one size class in their order, as many together as a Shard may hold.

    Always at least one. The classes stand in the order in which they first occur.
    """
    classes: dict[object, list[Job]] = {}
    for job in jobs:
        classes.setdefault(class_of(needs_of(job)), []).append(job)
    for of_class in classes.values():
        yield from _cut_in_order(of_class, settings)


def _cut_in_order(jobs: Iterable[Job], settings: Settings) -> Iterator[tuple[Job, ...]]:
    some: list[Job] = []
    num_tokens = 0
    for job in jobs:
        cost = expected_tokens(job)
        is_full = len(some) == settings.shard_max_jobs
        if some and (is_full or num_tokens + cost > settings.shard_max_tokens):
            yield tuple(some)
            some, num_tokens = [], 0
        some.append(job)
        num_tokens += cost
    if some:
        yield tuple(some)
