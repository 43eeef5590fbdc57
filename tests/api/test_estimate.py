"""Estimates: the tokens that a batch of the file then has, its problems, and no batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import openai
import pytest
from house import House, document, make_lines
from local_run import make_line
from openai.types import FileObject

from gristmill.client import BadRequestError, Client
from gristmill.control import estimate as control_estimate
from gristmill.ledger import estimates
from gristmill.ledger.estimates import EstimateStatus
from gristmill.prices import Price, PriceTable
from gristmill.requests.tokenise import Tokeniser


def ask(house: House, lines: list[str], tenant_id: str = "asks", **fields: Any) -> dict[str, Any]:
    """What is answered at once."""
    file = house.upload(lines, tenant_id=tenant_id)
    body = {"input_file_id": file.id, "endpoint": "/v1/completions", **fields}
    with house.http(tenant_id) as http:
        return document(http.post("/v1/estimate", json=body))


def wait(house: House, made: dict[str, Any], tenant_id: str = "asks") -> dict[str, Any]:
    give_up_at = time.monotonic() + 60
    with house.http(tenant_id) as http:
        while made["status"] not in ("completed", "failed"):
            assert time.monotonic() < give_up_at, made
            time.sleep(0.02)
            made = document(http.get(f"/v1/estimate/{made['id']}"))
    return made


def test_an_estimate_has_the_tokens_that_the_batch_then_has(house: House) -> None:
    lines = [*make_lines(6), *make_lines(2, n=2, max_tokens=7), *make_lines(1, temperature=9)]
    lines = [line.replace('"row-', f'"row-{i}-') for i, line in enumerate(lines)]

    made = ask(house, lines)
    found = wait(house, made)
    num_batches = len(list(house.client("asks").batches.list()))
    batch = house.wait(house.create(lines, tenant_id="asks"), tenant_id="asks")

    assert made["status"] == "queued" and made["would_run"] is None
    assert (found["status"], found["would_run"], found["model"]) == ("completed", True, "M")
    assert found["request_counts"] == {"total": 9, "refused": 1}
    assert batch.usage and found["input_tokens"] == batch.usage.input_tokens > 0
    assert found["output_tokens"]["max"] == 6 * 20 + 2 * 2 * 7
    (problem,) = found["problems"]
    assert (problem["fails"], problem["line"], problem["param"]) == ("row", 9, "temperature")
    assert num_batches == 0


def test_what_would_fail_the_batch_is_named_line_by_line(house: House) -> None:
    lines = [*make_lines(2), "{", make_lines(1)[0]]

    found = wait(house, ask(house, lines))

    assert (found["status"], found["would_run"], found["model"]) == ("completed", False, None)
    assert found["cost"] is found["seconds"] is found["output_tokens"] is None
    assert [(p["fails"], p["line"], p["code"]) for p in found["problems"]] == [
        ("batch", 3, "invalid_json_line"),
        ("batch", 4, "duplicate_custom_id"),
    ]
    assert found["num_problems"] == 2


@pytest.fixture
def priced(house: House) -> Iterator[House]:
    """Estimates are made by this test, with prices."""
    with patch("gristmill.control.read_uploads.estimate.list_due", return_value=[]):
        yield house


def test_cost_and_time_are_of_the_prices_and_of_what_was_measured(priced: House) -> None:
    house = priced
    house.wait(house.create(make_lines(4), tenant_id="asks"), tenant_id="asks")
    made = ask(house, make_lines(10))
    prices = PriceTable({"M": Price(Decimal(2), Decimal(1), Decimal(10))}, "EUR")
    control = replace(house.service.control, prices=prices)

    with (
        patch("gristmill.control.forecast.throughput.list_rates", return_value=[50.0, 100.0]),
        patch("gristmill.control.forecast.paces.list_paces", return_value=[]),
    ):
        _read_all(house, made["id"], control)
    found = wait(house, made)

    prompt, most = found["input_tokens"], 10 * 20
    # What other tests have made the tenant run counts, too.
    ended = list(house.client("asks").batches.list())
    num_tokens = sum(batch.usage.output_tokens for batch in ended if batch.usage)
    num_rows = sum(batch.request_counts.completed for batch in ended if batch.request_counts)
    expected = found["output_tokens"]["expected"]
    assert found["output_tokens"]["max"] == most and 0 < expected <= most
    assert expected == round(10 * num_tokens / num_rows)
    assert found["cost"] == {
        "currency": "EUR",
        "min": prompt * 2 / 1e6,
        "expected": (prompt * 2 + expected * 10) / 1e6,
        "max": (prompt * 2 + most * 10) / 1e6,
    }
    assert found["seconds"] == {
        "min": (prompt + expected) / 100,
        "max": (prompt + most) / 50,
        "num_measured": 2,
    }


def _read_all(house: House, estimate_id: str, control: Any, *, num_slices: int = 1) -> None:
    for _ in range(num_slices):
        with house.data.ledger.read() as conn:
            found = estimates.get(conn, "asks", estimate_id, now=control.now)
        assert found is not None
        assert control_estimate.estimate_slice(
            control, found, [house.model], Tokeniser, should_pause=lambda: num_slices > 1
        )


def test_a_file_is_read_in_slices_by_one_process_at_a_time(priced: House) -> None:
    house, control = priced, priced.service.control
    made = ask(house, make_lines(9))

    with patch("gristmill.requests.input_file.STRETCH_MAX_ROWS", 4):
        with house.data.ledger.read() as conn:
            first = estimates.get(conn, "asks", made["id"], now=control.now)
        assert first is not None
        _read_all(house, made["id"], control, num_slices=2)
        with house.data.ledger.read() as conn:
            midway = estimates.get(conn, "asks", made["id"], now=control.now)
        # One that began at the same time, from what it had read before:
        late = control_estimate.estimate_slice(
            control,
            first,
            [house.model],
            Tokeniser,
            should_pause=lambda: False,
        )
        _read_all(house, made["id"], control, num_slices=2)
    found = wait(house, made)
    whole = ask(house, make_lines(9))
    _read_all(house, whole["id"], control)

    assert midway is not None and not late
    assert (midway.status, midway.num_rows) == (EstimateStatus.RUNNING, 8)
    for name in ("input_tokens", "request_counts", "output_tokens"):
        assert found[name] == wait(house, whole)[name]


def test_an_estimate_that_is_asked_for_wrongly_is_refused(house: House) -> None:
    file = house.upload(make_lines(1), tenant_id="wrong")
    fields = {"input_file_id": file.id, "endpoint": "/v1/completions"}
    with house.http("wrong") as http:
        answers = [
            http.post("/v1/estimate", json={**fields, **changes})
            for changes in (
                {"endpoint": "/v1/audio"},
                {"input_file_id": "file-never"},
                {"input_file_id": "\0"},
                {"window": "24h"},
            )
        ]
        unknown = http.get("/v1/estimate/est_never")
    foreign = house.http("asks").post("/v1/estimate", json=fields)

    assert [answer.status_code for answer in answers] == [400, 404, 404, 400]
    assert unknown.status_code == foreign.status_code == 404


def test_estimates_have_an_end_whatever_becomes_of_the_file(priced: House) -> None:
    house, control = priced, priced.service.control
    made = [ask(house, make_lines(1), endpoint="/v1/completions") for _ in range(2)]
    house.client("asks").files.delete(made[0]["input_file_id"])
    _read_all(house, made[0]["id"], control)
    with patch("gristmill.control.estimate.prepare", side_effect=RuntimeError("a canary")):
        _read_all(house, made[1]["id"], control)

    found = [wait(house, one) for one in made]

    assert [one["status"] for one in found] == ["failed", "failed"]
    assert [one["problems"][0]["code"] for one in found] == ["input_modified", "internal_error"]
    assert "canary" not in str(found)


def test_a_tenant_has_few_estimates_made_at_once(priced: House) -> None:
    made = [ask(priced, make_lines(1), tenant_id="many") for _ in range(10)]
    one_more = ask(priced, make_lines(1), tenant_id="many")
    priced.clock.ahead_s += 8 * 86400
    try:
        with priced.http("many") as http:
            late = http.get(f"/v1/estimate/{made[0]['id']}")
        priced.wait_for(lambda: not num_kept(priced, "many"))
    finally:
        priced.clock.ahead_s -= 8 * 86400

    assert all(one["status"] == "queued" for one in made)
    assert one_more["error"]["code"] == "rate_limit_exceeded"
    assert late.status_code == 404


def num_kept(house: House, tenant_id: str) -> int:
    with house.data.ledger.read() as conn:
        return estimates.count_open(conn, tenant_id)


def test_a_batch_does_not_wait_for_an_estimate(house: House) -> None:
    windows_read: list[str] = []

    def counted(before: Any, window: Any, *rest: Any) -> Any:
        windows_read.append("window")
        if len(windows_read) == 1:
            windows_read.append("batch")
            batches.append(house.create(make_lines(1), tenant_id="hurries"))
        if len(windows_read) > 2 and batches:
            assert house.client("hurries").batches.retrieve(batches[0].id).in_progress_at
        return control_estimate_counted(before, window, *rest)

    batches: list[Any] = []
    control_estimate_counted = control_estimate._counted
    with (
        patch("gristmill.requests.input_file.STRETCH_MAX_ROWS", 4),
        patch.object(control_estimate, "_counted", counted),
    ):
        found = wait(house, ask(house, make_lines(40)))

    assert found["request_counts"] == {"total": 40, "refused": 0}
    assert windows_read == ["window", "batch", *["window"] * 9]


def test_an_upload_is_checked_when_that_is_asked_and_says_what_is_wrong(house: House) -> None:
    client = house.client("checks")

    def upload(lines: list[str], **more: Any) -> FileObject:
        asked = {"validate_for": "/v1/completions", **more}
        file = house.upload(lines, tenant_id="checks", extra_body=asked)
        return client.files.wait_for_processing(file.id, poll_interval=0.02)

    good = upload([*make_lines(2), make_line("refused", best_of=3)])
    bad = upload([*make_lines(1), *["{"] * 7])
    plain = house.upload(make_lines(1), tenant_id="checks")
    estimate_id = f"est_{bad.id.removeprefix('file-')}"
    with house.http("checks") as http:
        estimate = document(http.get(f"/v1/estimate/{estimate_id}"))
    listed = list(client.files.list(order="asc"))
    house.clock.ahead_s += 8 * 86400
    try:
        later = client.files.retrieve(bad.id)
    finally:
        house.clock.ahead_s -= 8 * 86400

    assert (good.status, good.status_details) == ("processed", None)
    assert bad.status == "error" and bad.status_details is not None
    assert bad.status_details.startswith("Line 2: The line is not valid JSON")
    assert "Line 6: " in bad.status_details and "Line 7: " not in bad.status_details
    assert bad.status_details.endswith(f"All are in /v1/estimate/{estimate_id}.")
    assert len(estimate["problems"]) == 7 and estimate["would_run"] is False
    assert plain.status == "processed" and later.status == "processed"
    assert listed == [good, bad, plain]


def test_an_upload_that_cannot_be_checked_is_refused_and_leaves_nothing(house: House) -> None:
    def refusal(endpoint: str) -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as refusal:
            house.upload(
                make_lines(1), tenant_id="unchecked", extra_body={"validate_for": endpoint}
            )
        return refusal.value

    unknown = refusal("/v1/audio")
    with patch("gristmill.api.file_checks._MAX_OPEN", 0):
        too_many = refusal("/v1/completions")

    assert (unknown.status_code, unknown.param) == (400, "validate_for")
    assert too_many.status_code == 429 and float(too_many.response.headers["retry-after"]) > 0
    assert list(house.client("unchecked").files.list()) == []
    assert list(house.data.store.list("t/unchecked/")) == []


def test_an_upload_that_waits_for_its_check_says_where_to_look(house: House) -> None:
    with patch("gristmill.control.read_uploads.estimate.estimate_slice", return_value=False):
        file = house.upload(
            make_lines(1), tenant_id="waits", extra_body={"validate_for": "/v1/completions"}
        )
        found = house.client("waits").files.retrieve(file.id)

    assert found.status == "uploaded" and "/v1/estimate/est_" in (found.status_details or "")


def test_the_same_upload_is_checked_once(house: House) -> None:
    def upload(**asked: str) -> FileObject:
        return house.upload(
            make_lines(1),
            tenant_id="checks-once",
            extra_body=asked,
            extra_headers={"idempotency-key": "k"},
        )

    first, again = (upload(validate_for="/v1/completions") for _ in range(2))

    assert first.id == again.id
    with pytest.raises(openai.BadRequestError):
        upload()


def test_our_own_client_sends_extra_fields_with_an_upload(house: House) -> None:
    asked = {"validate_for": "/v1/audio"}
    with (
        Client(base_url=f"{house.service.url}/v1", api_key=house.key("checks")) as client,
        pytest.raises(BadRequestError) as refusal,
    ):
        client.files.create(file=b"{}\n", purpose="batch", extra_body=asked)

    assert refusal.value.param == "validate_for"
