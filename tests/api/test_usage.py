"""Usage: what was accepted, by day, model and batch; once, and for good."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from house import House, document, make_lines
from ledgers import ledger as ledger
from ledgers import postgresql as postgresql
from ledgers import postgresql_process as postgresql_process

from gristmill.api.access import Scope
from gristmill.ledger import usage
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.usage import UsageKey
from gristmill.outcome import Usage
from gristmill.prices import Price, PriceTable


def get(house: House, tenant_id: str = "used", **params: Any) -> list[dict[str, Any]]:
    """All lines, in pages of two."""
    lines: list[dict[str, Any]] = []
    with house.http(tenant_id) as http:
        while True:
            page = document(http.get("/v1/usage", params={"limit": 2, **params}))
            lines += page["data"]
            if not page["has_more"]:
                return lines
            params["after"] = page["last_id"]


def test_usage_is_what_the_batches_say(house: House) -> None:
    lines = [*make_lines(5), *make_lines(1, temperature=9)]
    lines[-1] = lines[-1].replace("row-0", "row-refused")
    ended = [
        house.wait(house.create(lines, tenant_id="used"), tenant_id="used"),
        house.wait(house.create(make_lines(3), tenant_id="used"), tenant_id="used"),
    ]
    house.wait(house.create(["{}"], tenant_id="used"), tenant_id="used")  # counts nowhere

    by_batch = get(house, group_by="batch")
    (of_day,) = get(house)
    both = get(house, group_by=["day", "batch"])

    for batch in ended:
        (line,) = [found for found in by_batch if found["batch_id"] == batch.id]
        assert batch.request_counts and batch.usage
        assert line["request_counts"] == batch.request_counts.model_dump()
        assert line["usage"] == batch.usage.model_dump()
        assert (line["model"], line["day"], line["tenant_id"]) == ("M", None, "used")
        assert line["cost"] is None
    assert len(by_batch) == 2 and len(both) == 2
    assert of_day["request_counts"] == {"total": 9, "completed": 8, "failed": 1}
    total = sum(batch.usage.total_tokens for batch in ended if batch.usage)
    assert of_day["usage"]["total_tokens"] == total > 0
    assert of_day["day"] == both[0]["day"] and of_day["batch_id"] is None


def test_usage_has_a_cost_where_its_model_has_a_price(house: House) -> None:
    batch = house.wait(house.create(make_lines(2), tenant_id="priced"), tenant_id="priced")
    found = PriceTable({"*": Price(Decimal(3), Decimal(1), Decimal(5))})

    with patch.object(PriceTable, "find", lambda self, name: found.models["*"]):
        (line,) = get(house, "priced")

    used = batch.usage
    assert used is not None
    cached = used.input_tokens_details.cached_tokens
    expected = 3 * (used.input_tokens - cached) + cached + 5 * used.output_tokens
    assert line["cost"] == pytest.approx(expected / 1e6)


def test_usage_is_of_days_and_stays_when_the_batch_is_gone(house: House) -> None:
    house.wait(house.create(make_lines(1), tenant_id="daily"), tenant_id="daily")
    house.clock.ahead_s += 86400
    try:
        later = house.create(make_lines(2), tenant_id="daily")
        house.wait(later, tenant_id="daily")
        today = int(house.clock())
        with house.http("daily") as http:
            assert http.delete(f"/v1/batches/{later.id}").status_code == 200
        days = get(house, "daily")
        last_day = get(house, "daily", start_time=today, end_time=today)
        before = get(house, "daily", end_time=today - 86400)
    finally:
        house.clock.ahead_s -= 86400

    assert [day["request_counts"]["total"] for day in days] == [1, 2]
    assert (last_day, before) == (days[1:], days[:1])


def test_an_operator_sees_all_tenants_and_others_only_themselves(house: House) -> None:
    for tenant_id in ("north", "south"):
        house.wait(house.create(make_lines(1), tenant_id=tenant_id), tenant_id=tenant_id)
    scopes = [Scope.OPERATOR, Scope.BATCHES_READ]
    operator = {"authorization": f"Bearer {house.key('ops', scopes)}"}

    with house.http(headers=operator) as http:
        every = document(http.get("/v1/usage", params={"all_tenants": True, "limit": 1000}))
        wrong = [
            http.get("/v1/usage", params={"after": after})
            for after in ("x", "20000~south~~M", "~south~~M", "20000~so/uth~~M")
        ]

    assert {"north", "south"} <= {line["tenant_id"] for line in every["data"]}
    assert {line["tenant_id"] for line in get(house, "north")} == {"north"}
    # A cursor is only a place: behind it stands nothing of others.
    assert [answer.status_code for answer in wrong] == [404, 200, 404, 404]
    assert document(wrong[1])["data"] == []


class _Batch:
    """As much of a batch as usage looks at."""

    def __init__(self, tenant_id: str, batch_id: str, model: str) -> None:
        self.tenant_id, self.id = tenant_id, batch_id
        self.model = type("Pin", (), {"name": model})


def test_pages_have_each_line_once_in_any_grouping(ledger: Ledger) -> None:
    with ledger.write() as conn:
        for day in (3, 1, 2):
            for tenant_id in ("b", "a"):
                for batch_id in ("batch_2", "batch_1"):
                    batch: Any = _Batch(tenant_id, f"{batch_id}{tenant_id}", "org/M")
                    for _ in range(2):
                        usage.add(
                            conn,
                            batch,
                            now=day * 86400 + 5,
                            completed=1,
                            failed=0,
                            used=Usage(10, 5, 1),
                        )

    def keys(tenant_id: str | None, *by: str) -> list[UsageKey]:
        found: list[UsageKey] = []
        has_more = True
        while has_more:
            with ledger.read() as conn:
                lines, has_more = usage.list_lines(
                    conn,
                    tenant_id,
                    since_day=1,
                    until_day=3,
                    by=by,
                    limit=1,
                    after=found[-1] if found else None,
                )
            found += [line.key for line in lines]
            assert all(line.usage.prompt_tokens == 10 * line.completed for line in lines)
        return found

    assert keys("a") == [UsageKey(None, "a", None, "org/M")]
    assert keys("a", "day") == [UsageKey(day, "a", None, "org/M") for day in (1, 2)]
    assert keys("b", "batch") == [UsageKey(None, "b", f"batch_{i}b", "org/M") for i in (1, 2)]
    assert len(set(keys(None, "day", "batch"))) == len(keys(None, "batch", "day")) == 8
    with ledger.read() as conn:
        assert usage.mean_output_tokens(conn, "a", "org/M", since_day=2) == 5
        assert usage.mean_output_tokens(conn, "c", "org/M", since_day=2) is None


def test_what_a_rebuilt_ledger_learns_of_an_end_is_counted_once(ledger: Ledger) -> None:
    batch: Any = _Batch("rebuilt", "batch_1", "M")
    ended = {
        **{"id": "batch_1", "tenant_id": "rebuilt", "model_name": "M", "created_at": 5},
        **{"freeze_reason": "complete", "completed_at": 2 * 86400 + 5, "expired_at": None},
        **{"completed": 9, "failed": 1, "prompt_tokens": 90, "completion_tokens": 40},
        "cached_tokens": 7,
    }

    with ledger.write() as conn:
        usage.add(conn, batch, now=86400, completed=4, failed=0, used=Usage(40, 20, 2))
        for _ in range(2):
            usage.settle(conn, ended)
        expired = {**ended, "id": "batch_2", "freeze_reason": "expired"}
        usage.settle(conn, expired)
        found = [
            (line.key.day, line.key.batch_id, line.completed, line.failed, line.usage)
            for line in usage.list_lines(
                conn, "rebuilt", since_day=0, until_day=9, by=["day", "batch"], limit=9
            )[0]
        ]

    assert found == [
        (1, "batch_1", 4, 0, Usage(40, 20, 2)),
        (2, "batch_1", 5, 1, Usage(50, 20, 5)),
        (2, "batch_2", 9, 0, Usage(90, 40, 7)),
    ]
