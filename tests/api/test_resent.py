"""What a POST with an Idempotency-Key makes is made once, however often it is sent.

That of a batch is in test_requests.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import httpx2
import pytest
from house import House, as_file, document, make_lines

from gristmill.api import uploads
from gristmill.client import Client
from gristmill.ledger import idempotency
from gristmill.ledger.idempotency import KEPT_S, Made

BODY = as_file(make_lines(3))
ENDPOINT = {"name": "n", "url": "https://example.com/", "event_types": ["batch.failed"]}


@pytest.fixture
def tenant() -> str:
    return f"resent-{uuid4().hex[:8]}"


def send(
    house: House, tenant: str, key: str, body: bytes = BODY, *, name: str = "in.jsonl", **more: str
) -> httpx2.Response:
    with house.http(tenant) as http:
        return http.post(
            "/v1/files",
            headers={**http.headers, "idempotency-key": key},
            files={"file": (name, body)},
            data={"purpose": "batch", **more},
        )


def files_of(house: House, tenant: str) -> list[str]:
    """The ids that the tenant sees, which are those of what lies in the Store."""
    listed = sorted(file.id for file in house.client(tenant).files.list())
    stored = house.data.store.list(f"t/{tenant}/files/")
    assert sorted(key.rpartition("/")[2] for key in stored if ".tmp" not in key) == listed
    return listed


def test_the_same_upload_gives_the_same_file_and_another_one_an_error(
    house: House, tenant: str
) -> None:
    first = document(send(house, tenant, "k"))
    again = document(send(house, tenant, "k"))
    others = [
        send(house, tenant, "k", BODY + b"\n"),
        send(house, tenant, "k", name="other.jsonl"),
        send(house, tenant, "k", **{"expires_after[seconds]": "3600"}),
    ]
    of_another_tenant = document(send(house, f"{tenant}-2", "k"))

    assert first == again and files_of(house, tenant) == [first["id"]]
    for other in others:
        error = document(other)["error"]
        assert (other.status_code, error["code"]) == (400, "idempotency_key_reused")
        assert error["param"] == "Idempotency-Key" and first["id"] in error["message"]
    assert of_another_tenant["id"] != first["id"]


def test_a_key_is_free_after_a_day_and_gives_no_file_that_is_gone(
    house: House, tenant: str
) -> None:
    first = document(send(house, tenant, "k"))
    house.client(tenant).files.delete(first["id"])
    gone = send(house, tenant, "k")
    house.clock.ahead_s += KEPT_S + 1
    later = document(send(house, tenant, "k"))

    assert gone.status_code == 400 and "not there any more" in document(gone)["error"]["message"]
    assert files_of(house, tenant) == [later["id"]]


def test_what_was_refused_is_not_kept(house: House, tenant: str) -> None:
    refused = send(house, tenant, "k", name="in.txt")
    made = send(house, tenant, "k")

    assert (refused.status_code, made.status_code) == (400, 200)


def test_of_two_uploads_at_once_one_counts_and_the_other_leaves_nothing(
    house: House, tenant: str
) -> None:
    first, look, looks = document(send(house, tenant, "k")), idempotency.find, [0]

    def find_late(*arguments: Any, **more: Any) -> Made | None:
        """As long as it is not there yet; by the end of the second upload it is."""
        looks[0] += 1
        return None if looks[0] == 1 else look(*arguments, **more)

    with patch.object(uploads.idempotency, "find", find_late):
        same = document(send(house, tenant, "k"))
    looks[0] = 0
    with patch.object(uploads.idempotency, "find", find_late):
        other = send(house, tenant, "k", BODY + b"\n")

    assert same == first and files_of(house, tenant) == [first["id"]]
    assert document(other)["error"]["code"] == "idempotency_key_reused"


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_that_is_none_is_refused_before_anything_is_read(
    house: House, tenant: str, key: str
) -> None:
    answer = send(house, tenant, key)

    assert answer.status_code == 400
    assert document(answer)["error"]["param"] == "Idempotency-Key"
    assert files_of(house, tenant) == []


def test_our_own_client_sends_a_key_with_each_upload(house: House, tenant: str) -> None:
    with Client(base_url=f"{house.service.url}/v1", api_key=house.key(tenant)) as client:
        same = [
            client.files.create(file=BODY, purpose="batch", extra_headers={"idempotency-key": "k"})
            for _ in range(2)
        ]
        other = client.files.create(file=BODY, purpose="batch")

    assert same[0].id == same[1].id != other.id


def post(house: House, tenant: str, path: str, key: str, body: Any) -> httpx2.Response:
    with house.http(tenant) as http:
        return http.post(path, json=body, headers={**http.headers, "idempotency-key": key})


def listed(house: House, tenant: str, path: str) -> list[dict[str, Any]]:
    with house.http(tenant) as http:
        found: list[dict[str, Any]] = document(http.get(path))["data"]
    return found


def is_reused(answer: httpx2.Response, words: str = "") -> bool:
    error = document(answer)["error"]
    assert words in error["message"], error
    return (answer.status_code, error["code"]) == (400, "idempotency_key_reused")


def test_an_endpoint_is_made_once_and_its_secret_told_again(house: House, tenant: str) -> None:
    path = "/v1/webhook_endpoints"
    house.key(tenant)  # one for all threads

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(post, house, tenant, path, "k", ENDPOINT) for _ in range(6)]
    made = [document(answer.result()) for answer in asked]
    other = post(house, tenant, path, "k", {**ENDPOINT, "name": "other"})
    new = document(post(house, tenant, path, "k2", ENDPOINT))
    with house.http(tenant) as http:
        http.delete(f"{path}/{made[0]['id']}")
    gone = post(house, tenant, path, "k", ENDPOINT)
    house.clock.ahead_s += KEPT_S + 1
    later = document(post(house, tenant, path, "k", ENDPOINT))

    assert len({(one["id"], one["signing_secret"]) for one in made}) == 1
    assert is_reused(other, made[0]["id"]) and is_reused(gone, "not there any more")
    assert {one["id"] for one in listed(house, tenant, path)} == {new["id"], later["id"]}


def test_a_secret_is_told_again_to_the_same_api_key_only(house: House, tenant: str) -> None:
    made = document(post(house, tenant, "/v1/webhook_endpoints", "k", ENDPOINT))
    text, _ = house.service.access.make_key(tenant, name="another")

    with house.http(headers={"authorization": f"Bearer {text}", "idempotency-key": "k"}) as http:
        answer = http.post("/v1/webhook_endpoints", json=ENDPOINT)

    assert is_reused(answer) and made["signing_secret"] not in answer.text


def test_without_a_key_a_second_try_of_another_api_key_is_told_no_secret(
    house: House, tenant: str
) -> None:
    path = "/v1/webhook_endpoints"
    text, _ = house.service.access.make_key(tenant, name="another")
    again = {"x-stainless-retry-count": "1"}

    def ask(key: str, path: str, body: Any, more: dict[str, str]) -> Any:
        with house.http(headers={"authorization": f"Bearer {key}", **more}) as http:
            return document(http.post(path, json=body))

    made = ask(house.key(tenant), path, ENDPOINT, {})
    mine = ask(house.key(tenant), path, ENDPOINT, again)
    theirs = ask(str(text), path, ENDPOINT, again)
    rotation = f"{path}/{made['id']}/rotate_secret"
    rotated = ask(house.key(tenant), rotation, {}, {})
    rotated_by_them = ask(str(text), rotation, {}, again)
    late = [
        ask(house.key(tenant), rotation, {}, again),
        ask(house.key(tenant), path, ENDPOINT, again),
    ]

    told = [made, theirs, rotated, rotated_by_them, *late]
    assert mine == made
    assert len({one["signing_secret"] for one in told}) == len(told)


def test_a_secret_is_rotated_once(house: House, tenant: str) -> None:
    made = document(post(house, tenant, "/v1/webhook_endpoints", "k", ENDPOINT))
    path = f"/v1/webhook_endpoints/{made['id']}/rotate_secret"

    first, again = (document(post(house, tenant, path, "k", {})) for _ in range(2))
    second = document(post(house, tenant, path, "k2", {}))
    other = post(house, tenant, path, "k", {"keep_old_secret_active_for_24_hours": True})

    late = [
        post(house, tenant, path, "k", {}),
        post(house, tenant, "/v1/webhook_endpoints", "k", ENDPOINT),
    ]

    secrets = [one["signing_secret"] for one in (made, first, again, second)]
    assert secrets[1] == secrets[2] and len(set(secrets)) == 3
    assert is_reused(other)
    # Whoever made the second one may be somebody else.
    for answer in late:
        assert is_reused(answer, "since") and secrets[3] not in answer.text


def test_a_key_is_made_and_rotated_once_and_its_text_told_once(house: House, tenant: str) -> None:
    body = {"name": "n", "scopes": ["files:read"]}

    made = document(post(house, tenant, "/v1/api_keys", "k", body))
    again = post(house, tenant, "/v1/api_keys", "k", body)
    path = f"/v1/api_keys/{made['id']}/rotate"
    rotated = document(post(house, tenant, path, "k", {}))
    rotated_again = post(house, tenant, path, "k", {})

    for answer, first in ((again, made), (rotated_again, rotated)):
        assert is_reused(answer, f"{first['id']} before") and first["key"] not in answer.text
    named = [one["id"] for one in listed(house, tenant, "/v1/api_keys") if one["name"] == "n"]
    assert sorted(named) == sorted([made["id"], rotated["id"]])


def test_a_rotation_that_ends_the_key_at_once_is_told_when_it_is_sent_again(
    house: House, tenant: str
) -> None:
    made = document(post(house, tenant, "/v1/api_keys", "k", {"scopes": ["files:read"]}))
    path = f"/v1/api_keys/{made['id']}/rotate"

    rotated = document(post(house, tenant, path, "k", {"overlap_s": 0}))
    again = post(house, tenant, path, "k", {"overlap_s": 0})
    ended = document(post(house, tenant, path, "k2", {"overlap_s": 0}))

    assert is_reused(again, f"{rotated['id']} before")
    assert ended["error"]["code"] == "key_has_ended"


def test_an_estimate_is_made_once_and_one_key_names_one_thing_of_each_kind(
    house: House, tenant: str
) -> None:
    file = house.upload(make_lines(1), tenant_id=tenant, extra_headers={"idempotency-key": "k"})
    body = {"input_file_id": file.id, "endpoint": "/v1/completions"}

    first, again = (document(post(house, tenant, "/v1/estimate", "k", body)) for _ in range(2))
    other = post(house, tenant, "/v1/estimate", "k", {**body, "endpoint": "/v1/embeddings"})

    assert first["id"] == again["id"] and is_reused(other, first["id"])


@pytest.mark.parametrize("path", ["/v1/webhook_endpoints", "/v1/api_keys", "/v1/estimate"])
def test_a_key_that_is_none_is_refused(house: House, tenant: str, path: str) -> None:
    bodies = {
        "/v1/webhook_endpoints": ENDPOINT,
        "/v1/api_keys": {},
        "/v1/estimate": {
            "input_file_id": house.upload(make_lines(1), tenant_id=tenant).id,
            "endpoint": "/v1/completions",
        },
    }

    answer = post(house, tenant, path, "x" * 256, bodies[path])

    assert answer.status_code == 400
    assert document(answer)["error"]["param"] == "Idempotency-Key"
