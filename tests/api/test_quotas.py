"""Quotas: what a tenant may have at once, and what it is told when there is no room."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from house import House, as_file, document, make_lines
from typer.testing import CliRunner

from gristmill.api.access import Scope
from gristmill.cli import app as gristmill
from gristmill.ledger import quotas

FIELDS: dict[str, Any] = {"endpoint": "/v1/completions", "completion_window": "24h"}


@pytest.fixture
def held(house: House) -> Iterator[House]:
    """A service that decodes nothing while the test runs."""
    house.engine.paused = True
    yield house
    house.engine.paused = False


def set_own(house: House, tenant_id: str, **values: int | None) -> None:
    """Before the tenant's first request, so that they hold at once."""
    house.key(tenant_id)
    with house.data.ledger.write() as conn:
        assert quotas.set_own(conn, tenant_id, values, defaults=set())


def objects_of(house: House, tenant_id: str) -> list[str]:
    return list(house.data.store.list(f"t/{tenant_id}/"))


def test_one_batch_too_many_waits_for_another_to_end(held: House) -> None:
    set_own(held, "few", batches_in_flight=2)
    client, file = held.client("few"), held.upload(make_lines(1), tenant_id="few")

    def create(_: int) -> str:
        try:
            return client.batches.create(input_file_id=file.id, **FIELDS).id
        except openai.RateLimitError as refusal:
            assert refusal.code == "rate_limit_exceeded" and refusal.type == "batches_in_flight"
            assert refusal.response.headers["retry-after"] == "30"
            return ""

    with ThreadPoolExecutor(4) as pool:
        ids = sorted(pool.map(create, range(6)))
    made = [found for found in ids if found]
    described = [key for key in objects_of(held, "few") if key.endswith("batch.json")]
    client.batches.cancel(made[0])
    held.wait(client.batches.retrieve(made[0]), tenant_id="few")

    assert len(made) == 2 and len(described) == 2
    assert create(0)


def test_rows_and_tokens_that_wait_are_counted_as_a_file_is_read(held: House) -> None:
    set_own(held, "rows", rows_in_flight=5)
    set_own(held, "tokens", queued_tokens=100)
    set_own(held, "large", rows_per_batch=3)

    def failure(tenant_id: str, count: int) -> tuple[str | None, str | None]:
        batch = held.wait(
            held.create(make_lines(count), tenant_id=tenant_id),
            lambda b: b.status != "validating",
            tenant_id=tenant_id,
        )
        if batch.status != "failed":
            return batch.status, None
        assert batch.errors and batch.errors.data
        return batch.status, batch.errors.data[0].code

    assert failure("rows", 5) == ("in_progress", None)
    with pytest.raises(openai.RateLimitError) as refusal:
        held.create(make_lines(1), tenant_id="rows")
    assert refusal.value.type == "rows_in_flight"
    assert failure("tokens", 5) == ("in_progress", None)  # "Say row-0" has 9 tokens
    assert failure("tokens", 7) == ("failed", "token_limit_exceeded")
    assert failure("tokens", 6) == ("in_progress", None)
    assert failure("large", 3) == ("in_progress", None)
    assert failure("large", 4) == ("failed", "too_many_tasks")


def test_a_file_too_many_leaves_nothing_and_is_not_sent_again(house: House) -> None:
    set_own(house, "full", stored_bytes=1000)
    body = as_file(["x" * 599])
    first = house.upload(body, tenant_id="full")

    with pytest.raises(openai.RateLimitError) as refusal:
        house.upload(body, tenant_id="full", extra_headers={"x-try": "1"})
    with house.http("full") as http:
        form = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        pieces = [form, body, b"\r\n--x--\r\n"]
        chunked = http.post(
            "/v1/files",
            content=iter(pieces),  # no length is told
            headers={"content-type": "multipart/form-data; boundary=x"},
        )

    assert refusal.value.code == refusal.value.type == "insufficient_quota"
    assert refusal.value.response.headers["x-should-retry"] == "false"
    assert chunked.status_code == 429
    assert objects_of(house, "full") == [f"t/full/files/{first.id}"]
    assert house.client("full").files.delete(first.id).deleted
    assert house.upload(body, tenant_id="full").bytes == 600


def test_two_uploads_at_once_do_not_share_the_last_room(house: House) -> None:
    set_own(house, "both", stored_bytes=1000)
    body = as_file(["x" * 599])

    def upload(_: int) -> bool:
        try:
            house.upload(body, tenant_id="both")
        except openai.RateLimitError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(upload, range(4))) == 1
    assert len(objects_of(house, "both")) == 1


def test_an_operator_sets_quotas_and_a_tenant_sees_its_own(house: House) -> None:
    operator = house.key("ops", [Scope.OPERATOR])
    own = house.http("ruled")
    with own, house.http(headers={"authorization": f"Bearer {operator}"}) as ops:
        changed = ops.post(
            "/v1/tenants/ruled", json={"requests_per_min": 500, "stored_bytes": "none"}
        )
        seen = document(own.get("/v1/tenants/ruled"))
        listed = document(ops.get("/v1/tenants", params={"limit": 100}))
        back = document(ops.post("/v1/tenants/ruled", json={"stored_bytes": "default"}))
        refusals = [
            own.post("/v1/tenants/ruled", json={"requests_per_min": 9}),
            own.get("/v1/tenants"),
            own.get("/v1/tenants/ops"),
            ops.get("/v1/tenants/nobody"),
            ops.post("/v1/tenants/nobody", json={}),
            ops.post("/v1/tenants/ruled", json={"requests_per_min": -1}),
            ops.post("/v1/tenants/ruled", json={"requests_per_min": True}),
            ops.post("/v1/tenants/ruled", json={"rows": 1}),
        ]

    assert changed.status_code == 200
    assert seen["quotas"]["requests_per_min"] == 500 and seen["quotas"]["stored_bytes"] is None
    assert seen["own_quotas"] == ["requests_per_min", "stored_bytes"]
    assert set(seen["in_use"].values()) == {0}
    assert "ruled" in [tenant["id"] for tenant in listed["data"]]
    assert back["own_quotas"] == ["requests_per_min"]
    assert [refusal.status_code for refusal in refusals] == [403, 403, 404, 404, 404, 400, 400, 400]


def test_the_command_line_sets_quotas_of_a_tenant(house: House) -> None:
    house.key("commanded")

    def run(*arguments: str) -> tuple[int, str]:
        where = ["--data-dir", str(house.folder / "data")]
        found = CliRunner().invoke(gristmill, ["tenants", *arguments, *where])
        return found.exit_code, found.output

    done = run("set", "commanded", "queued_tokens=1000", "requests_per_min=none")
    listed = run("list")
    wrong = [
        run("set", "commanded", "tokens=1"),
        run("set", "commanded", "queued_tokens=many"),
        run("set", "nobody", "queued_tokens=1"),
    ]
    used = run("usage")
    log = run("audit", "--tenant", "commanded")

    assert done[0] == 0
    section = listed[1].split("commanded\n")[1]
    assert "queued_tokens = 1000\n" in section and "requests_per_min = none\n" in section
    assert [code for code, _ in wrong] == [2, 2, 2]
    assert used[0] == 0 and used[1].startswith("day ")
    assert "gristmill tenants set" in log[1]
