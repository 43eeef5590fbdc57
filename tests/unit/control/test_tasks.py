"""Control tasks under a broker that loses, repeats and doubles messages; workers that die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from control_office import NUM_ROWS, ROWS_A_WINDOW, Office
from local_run import make_model_folder
from pipeline import TENANT, Bench

from gristmill.control import read_uploads, tasks
from gristmill.control.base import Control
from gristmill.control.tasks import DISPATCH, ESTIMATE, FINALIZE, INGEST
from gristmill.errors import CorruptDocument, StoreError
from gristmill.ledger import estimates
from gristmill.ledger.batch import Batch
from gristmill.ledger.estimates import Estimate, EstimateStatus
from gristmill.ledger.status import BatchStatus
from gristmill.ledger.tickets import FIRST_WAIT_S, HOLD_S
from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.types import Endpoint


@pytest.fixture
def office(bench: Bench) -> Iterator[Office]:
    bench.settings = Settings(shard_max_jobs=3, dispatch_window_shards=2)
    model = find_model(str(make_model_folder(bench.folder / "M")), settings=bench.settings)
    with patch("gristmill.requests.input_file.STRETCH_MAX_ROWS", ROWS_A_WINDOW):
        yield Office(bench, model)


def test_all_twice_and_by_two_processes_has_the_effect_of_once(office: Office) -> None:
    office.submit()

    for _ in range(40):
        for process in (office.first, office.second):
            process.sweep()
            process.dispatch()
        delivered, office.messages = office.messages, []
        for message in delivered:
            for process in (office.first, office.second, office.first):
                office.deliver(process, message)
        office.work()
        if office.bench.batch.status is BatchStatus.COMPLETED:
            break

    lines = office.bench.lines("output") or []
    assert [line["custom_id"] for line in lines] == [f"row-{i}" for i in range(NUM_ROWS)]
    assert office.bench.lines("error") is None
    assert office.bench.batch.num_slices == NUM_ROWS // ROWS_A_WINDOW
    assert office.take(INGEST) == office.take(FINALIZE) == []


def test_messages_are_a_task_and_ids(office: Office) -> None:
    office.submit()
    office.first.sweep()

    ((task, ids),) = office.messages

    assert task == INGEST and ids[:2] == (TENANT, office.bench.batch_id)
    assert all(isinstance(word, str) and len(word) < 64 for word in ids)


def test_a_slice_rings_for_the_next_one_until_the_file_is_read(office: Office) -> None:
    office.submit()
    office.first.sweep()

    offsets = []
    while messages := office.take(INGEST):
        (ids,) = messages
        office.first.ingest(*ids)
        offsets.append(office.bench.batch.ingest_row_idx)

    assert offsets == [4, 8, 12, 12]  # the last one finds that there is no more
    assert office.bench.batch.status is BatchStatus.IN_PROGRESS
    assert office.take(DISPATCH) == [()]


def test_a_lost_message_is_rung_again_less_and_less_often(office: Office) -> None:
    office.submit()
    began = office.bench.clock.now
    rung_at = []

    for _ in range(20):
        office.first.sweep()
        office.second.sweep()
        if office.take(INGEST):  # and lost
            rung_at.append(office.bench.clock.now - began)
        office.bench.clock.advance(FIRST_WAIT_S)

    assert rung_at == [0, 10, 30, 70, 150]


def test_a_message_that_was_rung_again_counts_and_the_older_one_does_not(office: Office) -> None:
    office.submit()
    office.first.sweep()
    (old,) = office.take(INGEST)
    office.bench.clock.advance(FIRST_WAIT_S)
    office.second.sweep()
    (new,) = office.take(INGEST)

    office.first.ingest(*old)
    before = office.bench.batch.ingest_row_idx
    office.first.ingest(*new)

    assert (before, office.bench.batch.ingest_row_idx) == (0, ROWS_A_WINDOW)


def test_what_a_process_that_died_had_begun_is_taken_over(office: Office) -> None:
    office.submit()
    office.first.sweep()
    (ids,) = office.take(INGEST)
    death = patch.object(read_uploads, "ingest_slice", side_effect=KeyboardInterrupt)
    with death, pytest.raises(KeyboardInterrupt):
        office.first.ingest(*ids)

    office.second.sweep()
    too_early = office.take(INGEST)
    office.bench.clock.advance(HOLD_S)
    office.second.sweep()
    (again,) = office.take(INGEST)
    office.second.ingest(*again)

    assert too_early == []
    assert office.bench.batch.ingest_row_idx == ROWS_A_WINDOW


def test_a_slice_that_takes_long_is_left_to_the_process_that_says_it_lives(office: Office) -> None:
    office.submit()
    office.first.sweep()
    (ids,) = office.take(INGEST)
    rung: list[Any] = []

    def takes_long(*_: object, **__: object) -> bool:
        for _ in range(5):
            office.bench.clock.advance(HOLD_S - 1)
            office.first.keep_tickets()
            office.second.sweep()
        rung.extend(office.take(INGEST))
        return False

    with patch.object(read_uploads, "ingest_slice", takes_long):
        office.first.ingest(*ids)

    assert rung == [] and len(office.take(INGEST)) == 1  # the next slice


def test_an_outage_in_a_slice_costs_a_wait(office: Office) -> None:
    office.submit()
    office.first.sweep()
    (ids,) = office.take(INGEST)

    with patch.object(read_uploads, "ingest_slice", side_effect=StoreError("away")):
        office.first.ingest(*ids)
    office.bench.clock.advance(HOLD_S)
    office.first.sweep()
    (again,) = office.take(INGEST)
    office.first.ingest(*again)

    assert office.bench.batch.ingest_row_idx == ROWS_A_WINDOW


def test_a_batch_of_a_model_of_another_process_waits_for_that_one(office: Office) -> None:
    other = find_model(
        str(make_model_folder(office.bench.folder / "other", weights=b"others")),
        settings=office.bench.settings,
    )
    stranger = office.process(other)
    office.submit()
    office.first.sweep()
    office.first.ingest(*office.take(INGEST)[0])  # which decides the model
    stranger.ingest(*office.take(INGEST)[0])
    left_at = office.bench.batch.ingest_row_idx

    office.bench.clock.advance(HOLD_S)
    stranger.sweep()
    office.first.ingest(*office.take(INGEST)[0])

    assert (left_at, office.bench.batch.ingest_row_idx) == (ROWS_A_WINDOW, 2 * ROWS_A_WINDOW)


def test_a_sweep_that_takes_long_goes_on_where_it_was_at_the_next_call(office: Office) -> None:
    bench, ids = office.bench, ["batch_a", "batch_b", "batch_c"]
    for batch_id in ids:
        bench.batch_id = batch_id
        bench.create(expires_at=1)

    swept = []
    for _ in range(5):
        office.first.sweep()
        swept.append([of_batch for _, of_batch, _ in office.take(FINALIZE)])

    assert swept[:3] == [["batch_a"], ["batch_b"], ["batch_c"]]


@pytest.mark.parametrize("fault", [CorruptDocument("damaged"), StoreError("away")])
def test_a_sweep_that_meets_a_fault_goes_on_behind_it(office: Office, fault: Exception) -> None:
    bench, ids, seen = office.bench, ["batch_a", "batch_b", "batch_c"], list[str]()
    for batch_id in ids:
        bench.batch_id = batch_id
        bench.create(expires_at=1)

    def must_end(control: Control, batch: Batch) -> bool:
        seen.append(batch.id)
        if batch.id == "batch_b":
            raise fault
        return False

    with patch.object(tasks, "must_end", must_end):
        for _ in range(5):
            office.first.sweep()

    assert seen == [*ids, "batch_a", "batch_b"]


def test_an_overdue_batch_ends_slice_by_slice(office: Office) -> None:
    office.submit(window_s=60)
    office.first.sweep()
    while messages := office.take(INGEST):
        office.first.ingest(*messages[0])
    office.bench.clock.advance(61)

    office.first.sweep()
    seen: Counter[int] = Counter()
    while messages := office.take(FINALIZE):
        seen[office.bench.batch.merged_slices] += 1
        office.second.finalize(*messages[0])

    assert office.bench.batch.status is BatchStatus.EXPIRED
    assert seen == {0: 1, 1: 1, 2: 1}
    failed = office.bench.lines("error") or []
    assert {line["error"]["code"] for line in failed} == {"batch_expired"}
    assert len(failed) == NUM_ROWS


def test_an_estimate_is_read_in_slices_whatever_is_repeated(office: Office) -> None:
    office.submit()
    bench = office.bench
    wanted = Estimate(
        *("est_1", TENANT, EstimateStatus.QUEUED, "file-1", Endpoint.COMPLETIONS, ""),
        created_at=bench.control.now,
        expires_at=bench.control.now + 999,
    )
    with bench.ledger.write() as conn:
        estimates.add(conn, wanted)
    num_slices = 0

    for _ in range(8):
        for process in (office.first, office.second):
            process.sweep()
        delivered = office.take(ESTIMATE)
        num_slices += len(delivered)
        for ids in delivered:
            for process in (office.first, office.second, office.first):
                process.estimate(*ids)

    with bench.ledger.read() as conn:
        made = estimates.get(conn, TENANT, "est_1", now=bench.control.now)
    assert made is not None and made.status is EstimateStatus.COMPLETED
    assert made.num_rows == NUM_ROWS and made.problems == ()
    assert made.prompt_tokens == sum(len(f"Say row-{i}") for i in range(NUM_ROWS))
    assert num_slices > 1 and office.take(ESTIMATE) == []
