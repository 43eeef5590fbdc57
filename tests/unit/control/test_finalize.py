"""How a batch ends: one line for each row, in order, and each kind in its own channel."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import fake_text, fake_tokens
from mixed_batch import SHARD_JOBS, WINDOWS, answer, answer_all
from pipeline import (
    BATCH,
    PIN,
    TENANT,
    Bench,
    make_job,
    make_refusal,
    make_result,
    make_segment,
    make_windows,
)

from gristmill.control.accept import accept
from gristmill.control.finalize import finalize, freeze
from gristmill.control.sweep import sweep
from gristmill.errors import CorruptDocument
from gristmill.ledger import batches, files
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.stores.keys import frozen_key, segment_key
from gristmill.stores.segments import bell_of
from gristmill.types import Endpoint, RowError
from gristmill.wire import encode_segment


# Rows 0 to 8 in two windows; row 5 is merged with row 2, row 3 is refused.
def ids(lines: list[dict[str, Any]] | None) -> list[str]:
    return [line["custom_id"] for line in lines or []]


def rows(*idxs: int) -> list[str]:
    return [f"row-{idx}" for idx in idxs]


def test_the_lines_are_in_the_order_of_the_rows(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer_all(bench)

    sweep(bench.control)

    batch = bench.batch
    assert batch.status is BatchStatus.COMPLETED
    assert ids(bench.lines("output")) == rows(0, 1, 2, 4, 5, 6, 7, 8)
    assert ids(bench.lines("error")) == rows(3)
    assert (batch.total, batch.completed, batch.failed) == (9, 8, 1)
    assert batch.finalizing_at and batch.completed_at
    with bench.ledger.read() as conn:
        file = files.get(conn, TENANT, batch.output_file_id or "")
    assert file is not None and file.purpose == "batch_output" and file.num_bytes > 0


def test_merged_rows_get_the_same_answer_under_their_own_ids(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer_all(bench)
    sweep(bench.control)

    by_id = {line["custom_id"]: line for line in bench.lines("output") or []}
    two, five = by_id["row-2"]["response"]["body"], by_id["row-5"]["response"]["body"]

    assert two["choices"] == five["choices"]
    assert two["choices"][0]["message"]["content"] == fake_text(fake_tokens(make_job(2)))
    assert two["id"] != five["id"]
    assert bench.batch.usage.completion_tokens == sum(
        line["response"]["body"]["usage"]["completion_tokens"] for line in by_id.values()
    )


@pytest.mark.parametrize(
    ("reason", "code", "status"),
    [
        (FreezeReason.EXPIRED, "batch_expired", BatchStatus.EXPIRED),
        (FreezeReason.CANCELLED, "batch_cancelled", BatchStatus.CANCELLED),
        (FreezeReason.BUDGET, "budget_exceeded", BatchStatus.COMPLETED),
    ],
)
def test_what_was_answered_is_kept_and_the_rest_says_why_not_b41(
    bench: Bench, reason: FreezeReason, code: str, status: BatchStatus
) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer(bench, 0, 1)
    answer(bench, 3, 0, 1)
    if reason is FreezeReason.CANCELLED:
        with bench.ledger.write() as conn:
            batches.transition(conn, TENANT, BATCH, BatchStatus.CANCELLING, 5)

    assert freeze(bench.control, bench.batch, reason)
    assert finalize(bench.control, TENANT, BATCH)

    batch, error = bench.batch, bench.lines("error")
    assert batch.status is status
    assert ids(bench.lines("output")) == rows(0, 6, 8)
    assert ids(error) == rows(1, 2, 3, 4, 5, 7)
    assert (batch.completed, batch.failed, batch.total) == (3, 6, 9)
    missing = [line for line in error or [] if line["response"] is None]
    assert ids(missing) == rows(1, 2, 4, 5, 7)
    assert {line["error"]["code"] for line in missing} == {code}


def test_a_batch_past_its_window_expires_with_what_it_has_b41(bench: Bench) -> None:
    bench.create(expires_at=int(bench.clock.now) + 100)
    bench.ingest(WINDOWS)
    answer(bench, 0, 1)
    sweep(bench.control)
    before = bench.batch.status

    # This Segment's Bell was lost: the last listing before the freeze finds it.
    late = make_segment(bench.batch, 3, [make_result(SHARD_JOBS[3][0], 0)])
    bench.store.put(segment_key(bell_of(late)), encode_segment(late))
    bench.clock.advance(101)
    sweep(bench.control)

    assert before is BatchStatus.IN_PROGRESS
    assert bench.batch.status is BatchStatus.EXPIRED
    assert bench.batch.expired_at == int(bench.clock.now)
    assert ids(bench.lines("output")) == rows(0, 8)


def test_a_batch_that_ends_before_it_was_read_has_no_files(bench: Bench) -> None:
    bench.create(expires_at=int(bench.clock.now) + 100)
    bench.ingest(WINDOWS, should_pause=lambda: True)
    bench.clock.advance(101)

    sweep(bench.control)

    batch = bench.batch
    assert batch.status is BatchStatus.EXPIRED
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert (batch.total, batch.completed, batch.failed) == (0, 0, 0)
    assert bench.ingest(WINDOWS), "nothing is left to ingest"
    assert (bench.batch.status, bench.batch.num_slices) == (BatchStatus.EXPIRED, 1)


def test_a_file_without_lines_has_no_id_b42(bench: Bench) -> None:
    bench.create()
    bench.ingest(make_windows([make_refusal(0), make_refusal(1)]))

    sweep(bench.control)

    assert bench.batch.status is BatchStatus.COMPLETED
    assert bench.batch.output_file_id is None
    assert ids(bench.lines("error")) == rows(0, 1)


def test_a_clean_batch_has_no_error_file_and_ids_come_last_b42(bench: Bench) -> None:
    bench.create()
    bench.ingest(make_windows([make_job(0)]))
    jobs = make_windows([make_job(0)])[0].jobs
    segment = make_segment(bench.batch, 0, [make_result(jobs[0], 0)])
    bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
    accept(bench.control, [bell_of(segment)])
    seen: list[str | None] = []
    put_stream = bench.store.put_stream
    bench.store.put_stream = lambda key, chunks: (
        seen.append(bench.batch.output_file_id),
        put_stream(key, chunks),
    )[1]

    sweep(bench.control)

    assert set(seen) == {None}
    assert ids(bench.lines("output")) == rows(0)
    assert bench.batch.error_file_id is None


def test_each_kind_of_line_has_its_own_channel_b46(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer(bench, 0, 0)
    answer(bench, 0, 1, error=RowError("context_length_exceeded", "Too long.", "messages", 400))
    freeze(bench.control, bench.batch, FreezeReason.EXPIRED)
    finalize(bench.control, TENANT, BATCH)

    (good,) = bench.lines("output") or []
    refused, never_run = (bench.lines("error") or [])[:2]

    assert good["error"] is None and good["response"]["status_code"] == 200
    assert refused["error"] is None and refused["response"]["status_code"] == 400
    assert refused["response"]["body"] == {
        "error": {
            "message": "Too long.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    assert never_run["response"] is None
    assert set(never_run["error"]) == {"code", "message"}
    assert all(line["id"].startswith("batch_req_") for line in (good, refused, never_run))


def test_the_frozen_list_in_the_store_names_the_segments_that_count(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer(bench, 0, 0)
    freeze(bench.control, bench.batch, FreezeReason.EXPIRED)
    finalize(bench.control, TENANT, BATCH)

    frozen = json.loads(bench.store.get(frozen_key(TENANT, BATCH, bench.batch.run_id)))

    assert frozen["reason"] == "expired"
    assert frozen["segments"] == [[1, 2, "ingest", 0], [2, 0, "att-0", 0]]


def test_a_store_that_lost_an_accepted_segment_is_named(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    answer(bench, 0, 0)
    lost = make_segment(bench.batch, 0, attempt="att-0")
    bench.store.delete(segment_key(bell_of(lost)))
    freeze(bench.control, bench.batch, FreezeReason.EXPIRED)

    with pytest.raises(CorruptDocument, match="can no longer be read"):
        finalize(bench.control, TENANT, BATCH)


def test_finalize_pauses_between_slices(bench: Bench) -> None:
    bench.create()
    bench.ingest(WINDOWS)
    freeze(bench.control, bench.batch, FreezeReason.EXPIRED)
    pauses = iter([False, True, True])

    assert not finalize(bench.control, TENANT, BATCH, should_pause=lambda: next(pauses))
    assert bench.batch.merged_slices == 1
    assert not finalize(bench.control, TENANT, BATCH, should_pause=lambda: next(pauses))
    assert finalize(bench.control, TENANT, BATCH)
    assert bench.batch.model == PIN and bench.batch.endpoint is Endpoint.CHAT
