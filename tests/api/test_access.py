"""Who may: keys, scopes, tenants; foreign ids are unknown ids, on every route there is."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest
from example_bodies import example_body
from house import ALL, House, document, make_lines
from openai.types import Batch
from sqlalchemy import select

from gristmill.api.access import BELIEVED_S, DEFAULT_SCOPES, Access, Scope
from gristmill.api.key_text import new_key_text, parse_key_text
from gristmill.ledger import tenants
from gristmill.ledger.schema import metadata


def test_a_key_has_a_prefix_and_a_checksum_for_scanners() -> None:
    key = new_key_text()
    text = str(key)

    assert re.fullmatch(r"gm_[0-9a-f]{12}_[0-9A-Za-z]{38}", text)
    assert parse_key_text(text) == key
    assert key.secret not in repr(key)
    for i in range(3, len(text)):
        other = "a" if text[i] != "a" else "b"
        assert parse_key_text(text[:i] + other + text[i + 1 :]) is None


def test_of_a_key_only_a_digest_under_the_pepper_is_kept(house: House) -> None:
    text, key = house.service.access.make_key("acme", name="n")
    parsed = parse_key_text(str(text))
    assert parsed is not None

    with house.data.ledger.read() as conn:
        found = tenants.find_key(conn, key.id)
    other = Access(house.data.ledger, pepper=b"another pepper")

    assert found is not None and parsed.secret not in repr(found)
    assert found.digest == parsed.digest(house.data.pepper)
    assert house.service.access.find(str(text)) is not None
    assert other.find(str(text)) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Basic abc"},
        {"authorization": "Bearer gm_x"},
        {"authorization": f"Bearer {new_key_text()}"},
        {"authorization": "Bearer \u00e9\u00ff".encode("latin-1")},
    ],
)
def test_without_a_live_key_there_is_one_answer(house: House, headers: dict[str, Any]) -> None:
    in_url = {name: house.key() for name in ("api_key", "access_token", "authorization")}
    with house.http(headers=headers) as http:
        answers = [http.get("/v1/files"), http.post("/v1/batches"), http.get("/v1/models")]
        answers.append(http.get("/v1/models", params=in_url))  # where it would be logged

    for answer in answers:
        assert answer.status_code == 401
        assert document(answer)["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_that_expired_or_was_revoked_is_refused_within_seconds(house: House) -> None:
    admin = house.http()
    made = document(
        admin.post("/v1/api_keys", json={"name": "ci", "expires_at": int(house.clock()) + 60})
    )
    now = 0.0
    access = Access(
        house.data.ledger, pepper=house.data.pepper, clock=house.clock, monotonic=lambda: now
    )
    assert access.find(made["key"]) is not None
    assert access.find_believed(made["key"]) is not None

    assert admin.delete(f"/v1/api_keys/{made['id']}").status_code == 200
    assert access.find_believed(made["key"]) is not None  # for a moment
    now = BELIEVED_S + 0.1
    assert access.find_believed(made["key"]) is None
    assert access.find(made["key"]) is None

    text, _ = access.make_key("acme", name="short", expires_at=int(house.clock()) + 60)
    assert access.find(str(text)) is not None
    house.clock.ahead_s += 61
    try:
        assert access.find_believed(str(text)) is None
        assert access.find(str(text)) is None
    finally:
        house.clock.ahead_s -= 61
        admin.close()


def test_keys_are_made_listed_and_revoked_by_an_admin(house: House) -> None:
    with house.http("keyring") as http:
        made = document(http.post("/v1/api_keys", json={"name": "ci", "scopes": ["files:read"]}))
        listed = document(http.get("/v1/api_keys"))
        document(http.get("/v1/models"))
        with_key = {"authorization": f"Bearer {made['key']}"}
        allowed = http.get("/v1/files", headers=with_key)
        refused = http.get("/v1/batches", headers=with_key)
        revoked = document(http.delete(f"/v1/api_keys/{made['id']}"))
        wrong = [
            http.post("/v1/api_keys", json=body)
            for body in ({"scopes": ["all"]}, {"scopes": []}, {"expires_at": 1}, {"tenant": "x"})
        ]

    assert made["scopes"] == ["files:read"] and made["expires_at"] is None
    assert made["id"] in [key["id"] for key in listed["data"]]
    assert not any("key" in key or "digest" in key for key in listed["data"])
    assert allowed.status_code == 200
    assert (refused.status_code, document(refused)["error"]["code"]) == (403, "missing_scope")
    assert revoked["revoked_at"]
    assert [answer.status_code for answer in wrong] == [400] * 4


def test_the_last_use_of_a_key_is_written_once_a_minute(house: House) -> None:
    text, key = house.service.access.make_key("acme", name="n")

    def last_used() -> int | None:
        with house.data.ledger.read() as conn:
            found = tenants.find_key(conn, key.id)
        return found.last_used_at if found else None

    assert last_used() is None
    house.service.access.find(str(text))
    first = last_used()
    house.service.access.find(str(text))

    assert first is not None and last_used() == first


def test_a_key_without_a_scope_is_told_which_one(house: House) -> None:
    weak = house.http(headers={"authorization": f"Bearer {house.key('acme', [Scope.FILES_READ])}"})
    with weak:
        answers = [
            weak.post("/v1/files"),
            weak.delete("/v1/files/file-1"),
            weak.get("/v1/batches"),
            weak.post("/v1/batches/batch_1/cancel"),
            weak.post("/v1/api_keys"),
        ]

    assert [answer.status_code for answer in answers] == [403] * 5
    assert Scope.ADMIN not in DEFAULT_SCOPES


def test_B50_on_every_route_a_foreign_id_is_an_unknown_one(house: House) -> None:
    batch = house.wait(house.create(make_lines(2)))
    made = things_of_acme(house, batch)
    spec = document(house.http().get("/openapi.json"))
    before = all_of_acme(house)
    num_routes = 0

    with house.http("rival") as rival:
        for path, operations in spec["paths"].items():
            names = re.findall(r"{(\w+)}", path)
            if not names or names == ["model"]:  # models are the same for all
                continue
            (name,) = names
            for method, operation in operations.items():
                num_routes += 1
                assert made.get(name), f"say in things_of_acme how to make a {name}"
                body = example_body(spec, operation)
                sent: dict[str, Any] = {} if body is None else {"json": body}
                statuses = [
                    rival.request(method, path.replace(f"{{{name}}}", found_id), **sent).status_code
                    for found_id in ("batch_never", *made[name], "%00", "..%2f..", "\u00e9" * 9)
                ]
                # 403 where no caller but an operator gets in, whatever the id.
                assert set(statuses) <= {404, 403}, (method, path, statuses)
                assert len(set(statuses[: len(made[name]) + 1])) == 1, (method, path, statuses)
        for path, operations in spec["paths"].items():
            if "after" in [p["name"] for p in operations.get("get", {}).get("parameters", ())]:
                for found_id in (found for some in made.values() for found in some):
                    url = path.replace("{batch_id}", batch.id)
                    answer = rival.get(url, params={"after": found_id})
                    assert answer.status_code in (400, 403, 404), (path, found_id)
        with pytest.raises(openai.NotFoundError) as refusal:
            house.client("rival").batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/completions",
                completion_window="24h",
            )

    assert num_routes >= 12
    assert refusal.value.param == "input_file_id"
    assert all_of_acme(house) == before
    rival_client = house.client("rival")
    assert list(rival_client.batches.list()) == [] and list(rival_client.files.list()) == []
    assert house.client().batches.retrieve(batch.id) == batch
    assert len(house.lines(batch.output_file_id)) == 2


def things_of_acme(house: House, batch: Batch) -> dict[str, list[str]]:
    """Ids by the name that they have in URLs; each kind of thing that there is."""
    _, key = house.service.access.make_key("acme", name="n")
    asked = {"input_file_id": batch.input_file_id, "endpoint": "/v1/completions"}
    wanted = {"name": "n", "url": "https://example.com/", "event_types": ["batch.failed"]}
    with house.http() as http:
        estimate = document(http.post("/v1/estimate", json=asked))["id"]
        house.wait_for(
            lambda: document(http.get(f"/v1/estimate/{estimate}"))["status"] == "completed"
        )
        endpoint = document(http.post("/v1/webhook_endpoints", json=wanted))["id"]
        events = document(http.get("/v1/webhook_events", params={"batch_id": batch.id}))["data"]
    return {
        "file_id": [batch.input_file_id, str(batch.output_file_id)],
        "batch_id": [batch.id],
        "key_id": [key.id],
        "estimate_id": [estimate],
        "tenant_id": ["acme"],
        "webhook_endpoint_id": [endpoint],
        "event_id": [event["id"] for event in events],
    }


#: What its own requests change.
_COUNTED = {"last_used_at", "request_window", "requests_granted"}


def all_of_acme(house: House) -> tuple[dict[str, list[Any]], list[str]]:
    """All rows of the Ledger and all keys of the Store."""
    rows: dict[str, list[Any]] = {}
    with house.data.ledger.read() as conn:
        for table in metadata.sorted_tables:
            if "tenant_id" in table.c:
                columns = [column for column in table.c if column.name not in _COUNTED]
                found = conn.execute(select(*columns).where(table.c.tenant_id == "acme"))
                rows[table.name] = sorted(map(repr, found))
    return rows, list(house.data.store.list("t/acme/"))


def test_the_tenant_comes_from_the_key_and_from_nothing_else(house: House) -> None:
    batch = house.wait(house.create(make_lines(1)))

    with house.http("rival") as rival:
        for headers in (
            {"OpenAI-Organization": "acme", "OpenAI-Project": "acme"},
            {"x-tenant-id": "acme"},
        ):
            answer = rival.get(f"/v1/batches/{batch.id}", headers=headers)
            assert answer.status_code == 404

    assert set(ALL) >= set(DEFAULT_SCOPES)
