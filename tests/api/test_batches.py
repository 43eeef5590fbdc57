"""Batches through the official client: from an upload to the lines of its results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from house import House, custom_ids, make_lines
from local_run import make_line
from openai import OpenAI
from openai.types import Batch

from gristmill.stores.keys import stop_key

EXPIRED = "This request could not be executed before the completion window expired."


def test_a_batch_goes_from_upload_to_results(house: House) -> None:
    client = house.client()
    lines = make_lines(9)

    batch = house.create(lines, metadata={"project": "é\u2028"})
    created = batch
    batch = house.wait(batch)

    assert created.status == "validating"
    assert created.request_counts is not None and created.request_counts.total == 0
    assert batch.status == "completed" and batch.metadata == {"project": "é\u2028"}
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 9, "completed": 9, "failed": 0}
    assert batch.error_file_id is None and batch.errors is None and batch.model == "M"
    assert batch.in_progress_at and batch.finalizing_at and batch.completed_at
    assert batch.expires_at == batch.created_at + 24 * 3600
    found = house.lines(batch.output_file_id)
    assert custom_ids(found) == [f"row-{i}" for i in range(9)]
    usage = [line["response"]["body"]["usage"] for line in found]
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(u["completion_tokens"] for u in usage)
    assert batch.usage.total_tokens == sum(u["total_tokens"] for u in usage)
    file = client.files.retrieve(batch.output_file_id or "")
    assert (file.purpose, file.status) == ("batch_output", "processed")
    assert file.expires_at == file.created_at + 30 * 24 * 3600
    assert client.files.wait_for_processing(file.id).id == file.id


def test_B42_a_batch_whose_rows_all_fail_completes_without_an_output_file(house: House) -> None:
    batch = house.wait(house.create(make_lines(3, best_of=3)))

    assert batch.status == "completed" and batch.output_file_id is None
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 0, "failed": 3}
    assert custom_ids(house.lines(batch.error_file_id)) == ["row-0", "row-1", "row-2"]


def test_B46_answers_and_failures_lie_in_their_own_files(house: House) -> None:
    lines = [make_line("good"), make_line("bad", best_of=3), make_line("long", prompt="x" * 600)]

    batch = house.wait(house.create(lines))

    (good,) = house.lines(batch.output_file_id)
    failed = {line["custom_id"]: line for line in house.lines(batch.error_file_id)}
    assert (good["custom_id"], good["error"]) == ("good", None)
    assert set(failed) == {"bad", "long"}
    for line in failed.values():
        assert line["response"]["status_code"] == 400 and line["error"] is None
        assert set(line["response"]["body"]["error"]) == {"message", "type", "param", "code"}


def test_a_file_that_breaks_the_rules_fails_its_batch_and_each_line_is_named(house: House) -> None:
    lines = [make_line("a"), "{", make_line("a"), make_line("b", model="gpt-9")]

    batch = house.wait(house.create(lines))

    assert batch.status == "failed" and batch.failed_at and batch.model is None
    assert batch.request_counts is not None and batch.request_counts.total == 0
    assert batch.errors is not None and batch.errors.data is not None
    found = [(error.line, error.code) for error in batch.errors.data]
    assert found == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "model_mismatch"),
    ] or found == [(2, "invalid_json_line"), (3, "duplicate_custom_id"), (4, "model_not_found")]
    assert batch.output_file_id is None and batch.error_file_id is None


@pytest.mark.parametrize(
    ("body", "code"), [(b"", "empty_batch"), (b"\n\n", "empty_batch"), (b"\xff", None)]
)
def test_a_file_without_requests_fails_its_batch(
    house: House, body: bytes, code: str | None
) -> None:
    batch = house.wait(house.create(body))

    assert batch.status == "failed"
    assert batch.errors is not None and batch.errors.data
    assert code is None or batch.errors.data[0].code == code


def test_a_url_that_is_not_the_endpoint_fails_the_batch(house: House) -> None:
    batch = house.wait(house.create(make_lines(2), endpoint="/v1/chat/completions"))

    assert batch.status == "failed"
    assert batch.errors is not None and batch.errors.data
    assert batch.errors.data[0].code in ("url_mismatch", "invalid_request")


def test_cancelled_midway_keeps_what_is_finished(house: House) -> None:
    client = house.client()
    house.pause_midway()
    batch = house.create(make_lines(32))
    batch = house.wait(batch, lambda b: b.request_counts and b.request_counts.completed >= 2)

    cancelled = client.batches.cancel(batch.id)
    told_workers = house.data.store.get(stop_key("acme", batch.id))
    again = client.batches.cancel(batch.id)
    batch = house.wait(cancelled)
    house.engine.resume()

    assert cancelled.status == "cancelling" and cancelled.cancelling_at
    assert told_workers == b"cancelled"
    assert again.status in ("cancelling", "cancelled")
    assert batch.status == "cancelled" and batch.cancelled_at
    assert batch.request_counts is not None
    output, errors = house.lines(batch.output_file_id), house.lines(batch.error_file_id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (
        len(output),
        len(errors),
    )
    assert len(output) >= 2 and len(output) + len(errors) == batch.request_counts.total == 32
    assert {line["error"]["code"] for line in errors} <= {"batch_cancelled"}
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_batch_can_end_before_its_file_is_read(house: House) -> None:
    client = house.client()
    house.pause_ingest()
    cancelled = client.batches.cancel(house.create(make_lines(3)).id)
    expired = house.create(make_lines(3), completion_window="1h")
    house.clock.ahead_s += 3601
    try:
        ended = [house.wait(batch) for batch in (cancelled, expired)]
    finally:
        house.clock.ahead_s -= 3601
        house.resume_ingest()

    assert [batch.status for batch in ended] == ["cancelled", "expired"]
    for batch in ended:
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 0, "completed": 0, "failed": 0}
        assert batch.output_file_id is None and batch.error_file_id is None


def test_results_are_no_input_of_a_batch(house: House) -> None:
    batch = house.wait(house.create(make_lines(1)))

    with pytest.raises(openai.BadRequestError, match="batch_output") as refusal:
        house.client().batches.create(
            input_file_id=batch.output_file_id or "",
            endpoint="/v1/completions",
            completion_window="24h",
        )

    assert refusal.value.param == "input_file_id"


def test_a_finished_batch_cannot_be_cancelled(house: House) -> None:
    batch = house.wait(house.create(make_lines(1)))

    with pytest.raises(openai.BadRequestError) as refusal:
        house.client().batches.cancel(batch.id)

    assert refusal.value.code == "batch_not_cancellable"
    assert house.client().batches.retrieve(batch.id) == batch


def test_B41_a_batch_out_of_time_keeps_what_is_finished() -> None:
    with House.opened() as house:
        lines = [make_line(f"row-{i}") for i in range(23)]
        house.pause_midway()
        batch = house.create(lines, completion_window="10m")
        batch = house.wait(batch, lambda b: b.request_counts and b.request_counts.completed >= 3)

        house.clock.ahead_s += 601
        batch = house.wait(batch)

        output, errors = house.lines(batch.output_file_id), house.lines(batch.error_file_id)
        assert batch.status == "expired" and batch.expired_at
        assert batch.request_counts is not None and batch.request_counts.total == 23
        assert len(output) >= 3 and len(output) + len(errors) == 23
        assert {*custom_ids(output), *custom_ids(errors)} == {f"row-{i}" for i in range(23)}
        for line in errors:
            assert line["response"] is None
            assert line["error"] == {"code": "batch_expired", "message": EXPIRED}


def test_B48_pages_hold_each_batch_once_the_newest_first(house: House) -> None:
    client = house.client("pager")
    file = house.upload(make_lines(1), tenant_id="pager")
    made = [
        client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        ).id
        for _ in range(25)
    ]

    page = client.batches.list(limit=10)
    found = [batch.id for batch in client.batches.list(limit=10)]

    assert found == made[::-1]
    assert page.has_more and [batch.id for batch in page.data] == made[:-11:-1]
    raw = client.batches.with_raw_response.list(limit=10).http_response.json()
    assert (raw["object"], raw["first_id"], raw["last_id"]) == ("list", made[-1], made[-10])
    for wrong in (0, 101):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.batches.list(limit=wrong)
        assert refusal.value.param == "limit"
    with pytest.raises(openai.NotFoundError):
        client.batches.list(after="batch_unknown")


def test_B52_a_finished_batch_reads_the_same_each_time(house: House) -> None:
    house.engine.paused = True
    batch = house.create(make_lines(9))

    def read_on(client: OpenAI) -> list[Batch]:
        """What it sees from the moment on that the batch has ended."""
        house.wait(batch)
        return [client.batches.retrieve(batch.id) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read_on, house.client()) for _ in range(4)]
        house.engine.resume()
        found = [one for reader in readers for one in reader.result()]

    assert len(found) == 20 and all(one == found[0] for one in found)
    outputs = [f for f in house.client().files.list(purpose="batch_output")]
    assert len([f for f in outputs if f.id == found[0].output_file_id]) == 1
    assert len(house.lines(found[0].output_file_id)) == 9
