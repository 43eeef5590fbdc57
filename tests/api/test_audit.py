"""The audit log: who changed what, when, with which key; no route can forget it."""

from __future__ import annotations

import logging
from unittest.mock import patch

import pytest
from house import House, document, make_lines

from gristmill.api.access import Scope
from gristmill.control.removal import remove_unneeded
from gristmill.errors import StoreError
from gristmill.ledger import audit
from gristmill.ledger.audit import AuditEvent


def events(house: House, tenant_id: str) -> list[AuditEvent]:
    """The oldest first."""
    with house.data.ledger.read() as conn:
        page = audit.list_page(conn, tenant_id, limit=100)
    assert page is not None
    return page.items[::-1]


def test_what_changes_something_is_in_the_log_and_what_reads_is_not(house: House) -> None:
    client = house.client("logged")
    file = house.upload(make_lines(1), tenant_id="logged")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    house.wait(batch, tenant_id="logged")
    client.files.delete(file.id)
    list(client.batches.list())
    with house.http("logged") as http:
        made = document(http.post("/v1/api_keys", json={"name": "n"}))
        new = document(http.post(f"/v1/api_keys/{made['id']}/rotate", json={}))
        http.delete(f"/v1/api_keys/{made['id']}")
        refused = http.post("/v1/batches", json={})
        listed = document(http.get("/v1/audit_events", params={"limit": 2}))
        rest = document(
            http.get("/v1/audit_events", params={"after": listed["last_id"], "limit": 100})
        )

    found = events(house, "logged")
    assert refused.status_code == 400
    assert [(event.action, event.object_id) for event in found] == [
        ("POST /v1/files", file.id),
        ("POST /v1/batches", batch.id),
        ("DELETE /v1/files/{file_id}", file.id),
        ("POST /v1/api_keys", made["id"]),
        ("POST /v1/api_keys/{key_id}/rotate", made["id"]),
        ("DELETE /v1/api_keys/{key_id}", made["id"]),
    ]
    assert found[4].details == {"made": new["id"]}
    (key_id,) = {event.key_id for event in found}
    assert key_id == house.key("logged").split("_")[1]
    assert all(e.address == "127.0.0.1" and (e.request_id or "")[:4] == "req_" for e in found)
    assert all(abs(event.created_at - house.clock()) < 60 for event in found)
    shown = [*listed["data"], *rest["data"]]
    assert [event["id"] for event in shown] == [event.id for event in found[::-1]]
    assert listed["has_more"] and not rest["has_more"]
    assert not any(str(made["key"]) in str(event) for event in shown)


def test_an_admin_reads_his_own_log_and_an_operator_all(house: House) -> None:
    for tenant_id in ("left", "right"):
        house.upload(make_lines(1), tenant_id=tenant_id)
    operator = {"authorization": f"Bearer {house.key('ops', [Scope.ADMIN, Scope.OPERATOR])}"}
    reader = {"authorization": f"Bearer {house.key('left', [Scope.FILES_READ])}"}

    with house.http("left") as http:
        own = document(http.get("/v1/audit_events"))["data"]
        foreign = http.get("/v1/audit_events", params={"after": events(house, "right")[0].id})
        every = document(
            http.get(
                "/v1/audit_events", params={"all_tenants": True, "limit": 100}, headers=operator
            )
        )["data"]
        refused = http.get("/v1/audit_events", headers=reader)

    assert {event["tenant_id"] for event in own} == {"left"}
    assert {"left", "right"} <= {event["tenant_id"] for event in every}
    assert (foreign.status_code, refused.status_code) == (404, 403)


def test_nobody_is_told_of_a_change_that_is_not_in_the_log(house: House) -> None:
    with house.http("unlogged") as http:
        http.get("/v1/models")
        with patch("gristmill.api.audit_trail.audit.record", side_effect=StoreError("gone")):
            answer = http.post("/v1/api_keys", json={})
        again = http.post("/v1/api_keys", json={})

    assert (answer.status_code, again.status_code) == (503, 200)
    assert answer.headers["retry-after"] == "5" and b"gm_" not in answer.content
    assert [event.object_id for event in events(house, "unlogged")] == [document(again)["id"]]


def test_old_entries_are_removed_and_others_stay(house: House) -> None:
    now = int(house.clock())
    with house.data.ledger.write() as conn:
        for name, age_s in (("old", house.settings.audit_lifetime_s + 9), ("new", 9)):
            event = AuditEvent(f"audit_{name}", "aged", "a", "o", created_at=now - age_s)
            audit.record(conn, event)
    house.clock.ahead_s += 700  # when it is due again, whatever the sweep has done
    try:
        remove_unneeded(house.service.control)  # unless the sweep is about it just now
        house.wait_for(lambda: len(events(house, "aged")) < 2)
    finally:
        house.clock.ahead_s -= 700

    assert [event.id for event in events(house, "aged")] == ["audit_new"]


def test_logs_hold_no_prompt_no_answer_and_no_key(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    canary = "canary-in-a-prompt"
    with caplog.at_level(logging.DEBUG), house.http("quiet") as http:
        made = document(http.post("/v1/api_keys", json={"name": "n"}))
        batch = house.create(make_lines(2, prompt=canary), tenant_id="quiet")
        ended = house.wait(batch, tenant_id="quiet")
        (line, _) = house.lines(ended.output_file_id, tenant_id="quiet")
        bad = house.create([f'{{"custom_id": "{canary}"'], tenant_id="quiet")
        house.wait(bad, tenant_id="quiet")
        http.post("/v1/batches", json={"metadata": canary})

    text = line["response"]["body"]["choices"][0]["text"]
    secrets = (canary, made["key"], made["key"].split("_")[2], house.key("quiet"))
    ours = [r for r in caplog.records if r.name.startswith("gristmill")]
    logged = "\n".join(record.getMessage() for record in ours)
    assert batch.id in logged and text
    assert not [found for found in (*secrets, text) if found in logged]
