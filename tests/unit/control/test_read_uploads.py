"""Uploaded files are read in turn, and what is wrong with one keeps no other waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from local_run import make_line, make_model_folder
from pipeline import TENANT, Bench

from gristmill.control import read_uploads
from gristmill.control.read_uploads import ReadUploads
from gristmill.control.submit import submit
from gristmill.errors import StoreError, StoreRefused
from gristmill.ledger import estimates, files
from gristmill.ledger.batch import Submission
from gristmill.ledger.estimates import Estimate, EstimateStatus
from gristmill.ledger.status import BatchStatus
from gristmill.models import find_model
from gristmill.stores.keys import file_key
from gristmill.types import Endpoint


def upload(bench: Bench, file_id: str) -> None:
    body = b"".join(f"{make_line(f'row-{i}')}\n".encode() for i in range(2))
    bench.store.put(file_key(TENANT, file_id), body)
    now = bench.control.now
    with bench.ledger.write() as conn:
        files.add(conn, files.File(file_id, TENANT, "batch", "in.jsonl", len(body), now))


def create(bench: Bench, file_id: str) -> str:
    upload(bench, file_id)
    batch, _ = submit(
        *(bench.ledger, bench.store, bench.settings, TENANT),
        Submission(Endpoint.COMPLETIONS, file_id, "24h"),
        now_s=bench.clock(),
        window_s=86_400,
        resent_since=None,
    )
    return batch.id


@pytest.fixture
def uploads(bench: Bench) -> ReadUploads:
    model = find_model(str(make_model_folder(bench.folder / "M")), settings=bench.settings)
    return ReadUploads(bench.control, [model], monotonic=bench.clock)


def refusing(error: Exception, batch_id: str) -> Any:
    """Reads all batches but one."""
    read = read_uploads.ingest_slice

    def ingest_slice(control: Any, tenant_id: str, found: str, *args: Any, **kwargs: Any) -> bool:
        if found == batch_id:
            raise error
        return read(control, tenant_id, found, *args, **kwargs)

    return patch.object(read_uploads, "ingest_slice", ingest_slice)


def test_a_file_that_the_store_refuses_is_put_off_and_all_others_are_read(
    bench: Bench, uploads: ReadUploads
) -> None:
    refused = create(bench, "file-1")
    bench.clock.advance(1)
    bench.batch_id = create(bench, "file-2")

    with refusing(StoreRefused("no permission"), refused):
        was_busy = uploads.turn()
        after = uploads.turn()

    assert was_busy and not after
    assert bench.batch.status is BatchStatus.IN_PROGRESS
    bench.batch_id = refused
    assert bench.batch.status is BatchStatus.VALIDATING
    uploads.turn()
    assert bench.batch.status is BatchStatus.VALIDATING  # not at once
    bench.clock.advance(30)
    uploads.turn()
    assert bench.batch.status is BatchStatus.IN_PROGRESS


def test_an_outage_ends_the_turn(bench: Bench, uploads: ReadUploads) -> None:
    first = create(bench, "file-1")

    with refusing(StoreError("away"), first), pytest.raises(StoreError, match="away"):
        uploads.turn()


def test_an_estimate_whose_file_is_refused_keeps_no_other_waiting(
    bench: Bench, uploads: ReadUploads
) -> None:
    upload(bench, "file-1")
    now = bench.control.now
    for name in ("est_1", "est_2"):
        wanted = Estimate(
            *(name, TENANT, EstimateStatus.QUEUED, "file-1", Endpoint.COMPLETIONS, ""),
            created_at=now,
            expires_at=now + 999,
        )
        with bench.ledger.write() as conn:
            estimates.add(conn, wanted)
    open_file, refuses = bench.store.open, [True]

    def open_once(*args: Any, **kwargs: Any) -> Any:
        if refuses and refuses.pop():
            raise StoreRefused("no permission")
        return open_file(*args, **kwargs)

    with patch.object(bench.store, "open", open_once):
        uploads.turn()

    with bench.ledger.read() as conn:
        made = [estimates.get(conn, TENANT, name, now=now) for name in ("est_1", "est_2")]
    assert [e and e.status for e in made] == [EstimateStatus.QUEUED, EstimateStatus.COMPLETED]


@pytest.mark.parametrize(
    ("found_in_s", "num_windows"),
    [(0.0, 5), (1.0, 4), (4.0, 6), (50.0, 6)],
    ids=["at once", "soon", "nearly a slice", "ten slices"],
)
def test_a_slice_reads_on_however_long_it_takes_to_find_its_place(
    bench: Bench, uploads: ReadUploads, found_in_s: float, num_windows: int
) -> None:
    """A window takes a second, a slice five."""
    bench.batch_id = create(bench, "file-1")
    num_read = 0

    def slow(*_: Any, should_pause: Callable[[], bool], **__: Any) -> bool:
        nonlocal num_read
        bench.clock.advance(found_in_s)
        while True:
            bench.clock.advance(1)
            num_read += 1
            if should_pause():
                return False

    with patch.object(read_uploads, "ingest_slice", slow):
        uploads.read_slice(bench.batch, lambda: False, slice_s=5)

    assert num_read == num_windows
