"""What the pages show and do: the same as the API, escaped, and of the tenant's own things only."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from house import House, document, make_lines
from local_run import make_line
from visitor import Visitor, make_batches, text_of, visitor
from webhook_receiver import Receiver

from gristmill.api.access import Scope
from gristmill.ledger import batches

HOSTILE = """</td><script>alert("x")</script><img src=x onerror='alert(1)'>"""


def audit_of(house: House, tenant_id: str = "acme") -> list[dict[str, Any]]:
    with house.http(tenant_id) as http:
        events: list[dict[str, Any]] = document(http.get("/v1/audit_events"))["data"]
    return events


def test_an_empty_list_says_what_to_do_next(house: House) -> None:
    somebody = visitor(house, "newcomer")

    batches, webhooks = (somebody.get(path).text for path in ("/batches", "/webhooks"))

    assert "No batches yet" in batches
    assert f"GRISTMILL_BASE_URL={house.service.url}/v1" in batches
    assert "No webhook endpoints" in webhooks


def test_batches_are_shown_page_by_page_and_by_status(house: House) -> None:
    ids = make_batches(house, "many", 120)
    failed = make_batches(house, "many-failed", 3, status="failed")
    somebody = visitor(house, "many")

    first = somebody.get("/batches").text
    older = re.findall(r'href="/dashboard(/batches\?after=[\w-]+)" rel="next"', first)[0]
    second = somebody.get(older).text
    cancelled = text_of(somebody.get("/batches?status=cancelled").text)
    part = somebody.poll("/batches?status=&after=").text
    others = text_of(visitor(house, "many-failed").get("/batches?status=failed").text)

    def shown(page: str) -> list[str]:
        return re.findall(r'id="row-(\w+)"', page)

    assert shown(first) == ids[:-51:-1] and shown(second) == ids[-51:-101:-1]
    assert "Night 119" in text_of(first) and "100 %" in text_of(first)
    assert "None of your batches is cancelled" in cancelled
    assert shown(part) == shown(first) and "<html" not in part
    assert len(failed) == 3 and "Night 2" in others


def test_the_page_of_a_batch_tells_how_it_went(house: House) -> None:
    refused = make_line("bad-1", max_tokens=-1)
    batch = house.create([*make_lines(9), refused], metadata={"name": "Tonight"})
    batch = house.wait(batch)
    somebody = visitor(house)

    page = somebody.get(f"/batches/{batch.id}").text
    text = text_of(page)
    output = somebody.get(f"/batches/{batch.id}/output.jsonl")

    assert "Tonight completed" in text and "10 of 10 rows, 1 failed" in text
    assert "TTFT" in text and "ITL" in text
    assert re.search(r"invalid_value 1 10 %", text)
    assert "Checked and cut into Shards" in text and "Completed" in text
    assert "row-0" in text and "400 invalid_value" in text
    assert 'data-chart="' in page and "hx-trigger" not in page
    assert output.headers["content-disposition"].startswith("attachment")
    assert len(output.content.splitlines()) == 9
    chart = json.loads(re.findall(r'data-chart="([^"]*)"', page)[0].replace("&#34;", '"'))
    assert len(chart["x"]) == len(chart["tokens"]) == len(chart["rows"])


def test_the_rows_of_a_batch_are_read_on(house: House) -> None:
    batch = house.wait(house.create(make_lines(25)))
    somebody = visitor(house)
    seen: list[str] = []
    path = f"/batches/{batch.id}"

    for _ in range(3):
        page = somebody.get(path).text
        seen += re.findall(r"row-\d+", text_of(page))
        following = re.findall(r'href="/dashboard(\S+?)#rows" rel="next"', page)
        path = following[0] if following else path
    wrong = somebody.get(f"/batches/{batch.id}?after=nonsense")

    assert sorted(seen) == sorted(f"row-{i}" for i in range(25))
    assert wrong.status_code == 400 and "is no cursor" in text_of(wrong.text)


def test_what_people_have_written_is_only_ever_text(house: House) -> None:
    lines = [
        make_line(HOSTILE),
        make_line("two", user=HOSTILE),
        make_line("three", response_format={"type": HOSTILE}),
        make_line("four", **{HOSTILE: 1}),
    ]
    batch = house.wait(house.create(lines, metadata={"name": HOSTILE, HOSTILE[:64]: HOSTILE}))
    broken = house.wait(house.create([make_line("a", model=HOSTILE), "{<script>alert(2)</script>"]))
    house.service.access.make_key("acme", name=HOSTILE, scopes=(Scope.FILES_READ,))
    somebody = visitor(house)
    made = somebody.post(
        "/webhooks", name=HOSTILE, url="http://127.0.0.1:9/x", event_type="batch.failed"
    )
    endpoint = re.findall(r'href="/dashboard(/webhooks/\w+)"', made.text)[0]

    pages = [
        somebody.get(path)
        for path in (
            *("/batches", f"/batches/{batch.id}", f"/batches/{broken.id}"),
            *("/keys", "/webhooks", endpoint, "/login?next=%22%3E%3Cscript%3E"),
            *("/nowhere/%3Cscript%3Ealert(1)", f"/batches?status={HOSTILE}&after=x"),
        )
    ]

    assert all("<script>" not in page.text and "<img" not in page.text for page in (*pages, made))
    assert all("content-security-policy" in page.headers for page in pages)
    assert sum("&lt;script&gt;" in page.text for page in pages) >= 5


def test_a_name_that_turns_text_around_or_shows_nothing_leaves_the_page_as_it_is(
    house: House,
) -> None:
    turning, unseen = "\u202eevil \u2069\u2067", "\u200b\u2060"
    _, key = house.service.access.make_key("odd", name=turning, scopes=(Scope.FILES_READ,))
    make_batches(house, "odd", 1)
    (batch,) = make_batches(house, "odd-2", 1)
    with house.data.ledger.write() as conn:
        for tenant, name in (("odd", turning), ("odd-2", unseen)):
            is_its = batches.batches.c.tenant_id == tenant
            conn.execute(batches.batches.update().where(is_its).values(metadata={"name": name}))

    keys, listed = (visitor(house, "odd").get(path).text for path in ("/keys", "/batches"))
    without = visitor(house, "odd-2").get("/batches").text

    assert "<bdi>evil</bdi>" in keys and "Revoke “evil”?" in keys and key.id in keys
    assert "<bdi>evil</bdi>" in listed and f"<bdi>{batch}</bdi>" in without
    assert not set("\u202e\u2067\u2069\u200b\u2060") & set(keys + listed + without)


def test_foreign_and_unknown_things_are_not_there(house: House) -> None:
    batch = house.wait(house.create(make_lines(1)))
    _, key = house.service.access.make_key("acme", name="n")
    owner, rival = visitor(house), visitor(house, "rival")
    made = owner.post("/webhooks", name="n", url="http://127.0.0.1:9/x", event_type="batch.failed")
    endpoint = re.findall(r'href="/dashboard(/webhooks/\w+)"', made.text)[0]

    for named, unknown in (
        (f"/batches/{batch.id}", "/batches/batch_0"),
        (f"/batches/{batch.id}/output.jsonl", "/batches/batch_0/output.jsonl"),
        (f"/batches?after={batch.id}", "/batches?after=batch_0"),
        (f"/keys?after={key.id}", "/keys?after=000000000000"),
        (endpoint, "/webhooks/we_0"),
    ):
        answers = [rival.get(path) for path in (named, unknown)]
        assert [answer.status_code for answer in answers] == [404, 404], named
        assert owner.get(named).status_code == 200, named
    for path in (
        *(f"/batches/{batch.id}/cancel", f"/batches/{batch.id}/retry"),
        *(f"/keys/{key.id}/rotate", f"/keys/{key.id}/revoke"),
        *(endpoint, f"{endpoint}/delete", f"{endpoint}/test", f"{endpoint}/events/evt_0/replay"),
    ):
        assert rival.post(path, follow=False).status_code == 404, path
    assert owner.get(endpoint).status_code == 200
    for path in ("/batches/a%20b", "/batches/" + "x" * 90, "/nowhere"):
        assert owner.get(path).status_code == 404


def test_a_batch_is_cancelled_and_retried_from_its_page(house: House) -> None:
    house.pause_midway()
    batch = house.create(make_lines(40))
    house.wait(batch, lambda b: b.request_counts.completed >= 4)
    somebody = visitor(house)

    running = somebody.get(f"/batches/{batch.id}").text
    cancelled = somebody.post(f"/batches/{batch.id}/cancel")
    house.engine.resume()
    house.wait(batch)
    ended = somebody.get(f"/batches/{batch.id}").text
    again = somebody.post(f"/batches/{batch.id}/cancel", follow=False)
    retried = somebody.post(f"/batches/{batch.id}/retry")

    assert 'hx-trigger="every' in running and "Cancel this batch?" in running
    assert "Run the failed rows again?" not in running
    assert "is being cancelled" in text_of(cancelled.text)
    assert "Run the failed rows again?" in ended and "batch_cancelled" in ended
    assert again.status_code == 303 or "nothing to cancel" in text_of(again.text)
    assert "This batch runs again what had no answer" in text_of(retried.text)
    assert batch.id in retried.text
    actions = {event["action"]: event for event in audit_of(house)}
    assert actions["POST /v1/batches/{batch_id}/cancel"]["object_id"] == batch.id
    retry = actions["POST /v1/batches/{batch_id}/retry"]
    assert retry["details"]["by"] == "dashboard" and retry["details"]["made"]


def test_keys_are_made_shown_once_rotated_and_revoked(house: House) -> None:
    somebody = visitor(house, "locksmith")

    made = somebody.post("/keys", name="ci", days="90", scope=["files:read", "batches:read"])
    key = re.findall(r"gm_\w{51}", made.text)[0]
    key_id = key.split("_")[1]
    with_key = house.http("locksmith", headers={"authorization": f"Bearer {key}"})
    works = with_key.get("/v1/batches").status_code
    rotated = somebody.post(f"/keys/{key_id}/rotate", overlap_s="3600")
    new = re.findall(r"gm_\w{51}", rotated.text)[0]
    listed = somebody.get("/keys").text
    revoked = somebody.post(f"/keys/{new.split('_')[1]}/revoke")

    assert works == 200 and made.headers["cache-control"] == "no-store"
    assert key not in listed and new not in listed and f"gm_{key_id}_…" in listed
    assert "It is refused everywhere within seconds" in text_of(revoked.text)
    assert "revoked" in text_of(revoked.text)
    events = [event for event in audit_of(house, "locksmith") if "api_keys" in event["action"]]
    assert {event["action"] for event in events} == {
        "POST /v1/api_keys",
        "POST /v1/api_keys/{key_id}/rotate",
        "DELETE /v1/api_keys/{key_id}",
    }
    assert all(key not in json.dumps(event) and new not in json.dumps(event) for event in events)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "n"}, "scopes"),
        ({"name": "n", "scope": "all"}, "scopes"),
        ({"name": "n" * 201, "scope": "files:read"}, "name"),
        ({"name": "n", "scope": "files:read", "days": "soon"}, "no whole number"),
        ({"name": "n", "scope": "operator"}, "lacks the scope"),
    ],
)
def test_keys_that_cannot_be_are_refused_with_the_reason(
    house: House, fields: dict[str, str], words: str
) -> None:
    answer = visitor(house, "locksmith").post("/keys", **fields)

    assert answer.status_code in (400, 403) and words in text_of(answer.text)


def test_a_delivery_is_seen_in_the_log_and_replayed(house: House) -> None:
    somebody = visitor(house, "told")
    with Receiver() as receiver:
        made = somebody.post("/webhooks", name="n", url=receiver.url, event_type="batch.completed")
        path = re.findall(r'href="/dashboard(/webhooks/\w+)"', made.text)[0]
        house.wait(house.create(make_lines(1), tenant_id="told"), tenant_id="told")
        house.wait_for(lambda: "delivered" in somebody.get(path).text)
        log = somebody.get(path).text
        replay = re.findall(rf'action="/dashboard({path}/events/\w+/replay)"', log)[0]
        replayed = somebody.post(replay)
        house.wait_for(lambda: len(receiver.calls) == 2)
        tested = somebody.post(f"{path}/test", event_type="batch.completed")
        disabled = somebody.post(path, enabled="no")
        enabled = somebody.post(path, enabled="yes")
        deleted = somebody.post(f"{path}/delete")

    secret = re.findall(r"whsec_[\w+/=]+", made.text)[0]
    assert receiver.calls[0].is_signed_with(secret)
    assert secret not in log and "1 attempt, the last: 200" in text_of(log)
    assert "The event is sent again" in text_of(replayed.text)
    assert receiver.calls[0].id == receiver.calls[1].id
    assert "A test event was sent" in text_of(tested.text)
    assert "Its owner has disabled it." in disabled.text
    assert "is enabled" in text_of(enabled.text) and "is deleted" in text_of(deleted.text)
    assert somebody.get(path).status_code == 404


def test_who_may_only_read_sees_no_button(house: House) -> None:
    batch = house.wait(house.create(make_lines(1)))
    reader = visitor(house, "acme", scopes=(Scope.BATCHES_READ, Scope.WEBHOOKS_READ))

    page = reader.get(f"/batches/{batch.id}").text
    webhooks = reader.get("/webhooks").text

    assert 'href="/dashboard/keys"' not in page and "Cancel…" not in page
    assert "output.jsonl" not in page
    assert "New endpoint" not in webhooks


def test_styles_and_scripts_come_from_here_and_never_grow_old(house: House) -> None:
    page = Visitor(house).get("/login").text
    batch_page = visitor(house).get("/batches").text
    paths = re.findall(r'(?:src|href)="/dashboard(/static/[^"]+)"', page + batch_page)

    answers = [house.http(headers={}).get(f"/dashboard{path}") for path in paths]
    unknown = house.http(headers={}).get("/dashboard/static/0/dashboard.css")

    assert len(paths) >= 4
    assert all("immutable" in answer.headers["cache-control"] for answer in answers)
    assert all(answer.headers["content-encoding"] == "gzip" for answer in answers)
    assert unknown.status_code == 404


def test_the_pages_are_no_part_of_the_api(house: House) -> None:
    spec = document(house.http().get("/openapi.json"))

    assert not [path for path in spec["paths"] if "dashboard" in path]
    assert "status" in json.dumps(spec["paths"]["/v1/batches"]["get"]["parameters"])


def test_the_api_lists_batches_of_some_statuses(house: House) -> None:
    make_batches(house, "sorted", 2, status="expired")
    with house.http("sorted") as http:
        found = document(http.get("/v1/batches", params={"status": ["expired", "failed"]}))
        others = document(http.get("/v1/batches", params={"status": "completed"}))
        wrong = http.get("/v1/batches", params={"status": "lost"})

    assert len(found["data"]) == 2 and others["data"] == []
    assert wrong.status_code == 400
