"""Who sees the dashboard: logged in with a live key, for a while, and from a page of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from house import House, document
from sqlalchemy import select
from starlette.routing import Route
from visitor import COOKIE, Visitor, visitor

from gristmill.api.access import Scope
from gristmill.control.removal import remove_unneeded
from gristmill.dashboard.app import create_dashboard
from gristmill.dashboard.session import IDLE_S, LONGEST_S, Sessions
from gristmill.ledger.schema_sessions import ended_sessions

NOW = 1_000_000


@pytest.fixture
def no_memory() -> Iterator[None]:
    """A key is looked up for each request, as it is otherwise every few seconds."""
    with patch("gristmill.api.access.BELIEVED_S", -1.0):
        yield


def routes(house: House) -> list[tuple[str, str]]:
    """Method and path of every page and form, with ids that nobody has."""
    api = house.service._server._server.config.app.state.api  # type: ignore[union-attr]
    found = []
    for route in create_dashboard(api).routes:
        assert isinstance(route, Route) and route.methods
        path = route.path.replace("{which}", "output")
        found += [
            (method, re.sub(r"{\w+}", "nobodys", path)) for method in route.methods - {"HEAD"}
        ]
    return found


def test_the_root_leads_to_the_login_and_from_there_to_where_one_wanted(house: House) -> None:
    somebody = Visitor(house)

    root = house.http(headers={}).get("/")
    led = somebody.get("/keys")
    logged_in = somebody.log_in(house.key(), next="/keys")

    assert (root.status_code, root.headers["location"]) == (307, "/dashboard/")
    assert led.status_code == 303
    assert led.headers["location"] == "/dashboard/login?next=%2Fkeys"
    assert logged_in.headers["location"] == "/dashboard/keys"
    assert somebody.get("/keys").status_code == 200


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        (Scope.BATCHES_READ, "/batches"),
        (Scope.WEBHOOKS_READ, "/webhooks"),
        (Scope.OPERATOR, "/fleet"),
    ],
)
def test_a_key_comes_first_to_a_page_that_it_may_see(house: House, scope: Scope, path: str) -> None:
    somebody = visitor(house, scopes=(scope,))

    assert somebody.get("/").headers["location"] == f"/dashboard{path}"
    assert somebody.get(path).status_code == 200


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/\\evil", "/a//b"])
def test_nobody_is_led_elsewhere_behind_the_login(house: House, wanted: str) -> None:
    answer = Visitor(house).log_in(house.key(), next=wanted)

    assert answer.headers["location"] == "/dashboard/"


def test_the_cookie_holds_no_key_and_scripts_cannot_read_it(house: House) -> None:
    key = house.key()

    plain = Visitor(house).log_in(key).headers["set-cookie"]
    behind_tls = Visitor(house, **{"x-forwarded-proto": "https"}).log_in(key).headers["set-cookie"]

    note = plain.partition(";")[0]
    assert key.split("_")[2] not in note and key not in note
    assert {"HttpOnly", "SameSite=lax", "Path=/dashboard"} <= set(plain.split("; "))
    assert int(re.findall(r"Max-Age=(\d+)", plain)[0]) <= 3600
    assert "Secure" in behind_tls and "Secure" not in plain


def test_the_note_of_a_session_is_no_key_for_the_api(house: House) -> None:
    somebody = visitor(house)
    note = somebody.http.cookies[COOKIE]

    with house.http(headers={"cookie": f"{COOKIE}={note}"}) as http:
        by_cookie = http.get("/v1/batches")
    with house.http(headers={"authorization": f"Bearer {note}"}) as http:
        as_key = http.get("/v1/batches")

    assert (by_cookie.status_code, as_key.status_code) == (401, 401)


def test_a_wrong_key_is_refused_in_one_text_and_counted_as_everywhere(house: House) -> None:
    wrong = Visitor(house)

    answers = [wrong.log_in(key) for key in ("", "gm_x", "gm_" + "0" * 12 + "_" + "a" * 38)]
    with patch("gristmill.api.limits.FailedLogins.wait_s", return_value=30.0):
        late = wrong.log_in("gm_x")
        live = Visitor(house).log_in(house.key())

    assert [answer.status_code for answer in answers] == [401] * 3
    assert len({answer.text for answer in answers}) == 1
    assert "gm_x" not in answers[1].text
    assert (late.status_code, late.headers["retry-after"]) == (429, "30")
    assert live.status_code == 303 and COOKIE not in wrong.http.cookies


def test_revoking_its_key_ends_a_session(house: House, no_memory: None) -> None:
    text, key = house.service.access.make_key("ends", name="n", scopes=(Scope.BATCHES_READ,))
    somebody = Visitor(house)
    somebody.log_in(str(text))
    before = somebody.get("/batches").status_code

    with house.http("ends") as http:
        http.delete(f"/v1/api_keys/{key.id}")
    polled = somebody.poll("/batches")
    after = somebody.get("/batches")

    assert (before, after.status_code) == (200, 303)
    assert polled.status_code == 401
    assert polled.headers["hx-redirect"].startswith("/dashboard/login")


def test_a_session_ends_an_hour_after_the_last_look_and_within_half_a_day(house: House) -> None:
    somebody = visitor(house)

    def looks_after(seconds: float) -> int:
        house.clock.ahead_s += seconds
        return somebody.get("/batches").status_code

    try:
        looks = [looks_after(0.9 * IDLE_S) for _ in range(15)]
        late = visitor(house)
        house.clock.ahead_s += 1.1 * IDLE_S
        idle = late.get("/batches").status_code
    finally:
        house.clock.ahead_s = 0.0

    num_good = int(LONGEST_S / (0.9 * IDLE_S))
    assert looks == [200] * num_good + [303] * (15 - num_good)
    assert idle == 303


def test_the_audit_log_has_each_login(house: House) -> None:
    visitor(house, "watched")

    with house.http("watched") as http:
        events = document(http.get("/v1/audit_events"))["data"]

    assert [event["action"] for event in events] == ["POST /dashboard/login"]


@pytest.mark.parametrize("age_s", [0, 1000])
def test_logging_out_takes_the_cookie_back(house: House, age_s: int) -> None:
    somebody = visitor(house)
    token = somebody.token()

    house.clock.ahead_s += age_s  # later it would be renewed
    left = somebody.http.post("/logout", data={"form_token": token})
    house.clock.ahead_s = 0.0

    assert left.headers["location"] == "/dashboard/login"
    assert COOKIE not in somebody.http.cookies
    assert somebody.get("/batches").status_code == 303


def test_a_copy_of_a_cookie_is_of_no_use_once_somebody_logged_out(house: House) -> None:
    somebody, thief, colleague = visitor(house), Visitor(house), visitor(house)
    thief.http.cookies.update(somebody.http.cookies)
    assert thief.get("/batches").status_code == 200

    somebody.post("/logout", follow=False)

    assert thief.get("/batches").status_code == 303
    assert colleague.get("/batches").status_code == 200


def test_what_was_logged_out_of_is_remembered_as_long_as_it_could_be_used(house: House) -> None:
    def remembered() -> set[str]:
        with house.data.ledger.read() as conn:
            return set(conn.execute(select(ended_sessions.c.nonce)).scalars())

    before = remembered()
    visitor(house).post("/logout", follow=False)
    (first,) = remembered() - before
    house.clock.ahead_s += 2 * LONGEST_S  # when it is due again, whatever the sweep has done
    try:
        visitor(house).post("/logout", follow=False)
        (second,) = remembered() - before - {first}
        remove_unneeded(house.service.control)  # unless the sweep is about it just now
        house.wait_for(lambda: first not in remembered())
    finally:
        house.clock.ahead_s = 0.0

    assert second in remembered()


def test_every_page_and_form_asks_for_a_session_and_nearly_every_one_for_a_scope(
    house: House,
) -> None:
    weak = visitor(house, "weak", scopes=())
    found = routes(house)

    assert len(found) > 15
    for method, path in found:
        if path.startswith(("/login", "/static")):
            continue
        anybody = Visitor(house).http.request(method, path)
        assert anybody.status_code == 303, path
        assert "/login" in anybody.headers["location"]
        if path not in ("/", "/logout"):
            known = weak.http.request(method, path)
            assert known.status_code == 403 and "lacks the scope" in known.text, path


def test_no_form_is_taken_without_its_token_or_from_another_site(house: House) -> None:
    somebody, other = visitor(house), visitor(house)
    token, others = somebody.token(), other.token()
    foreign = ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"})
    attacks = [
        *(({}, {"form_token": wrong}) for wrong in ("", "0" * 64, others, "ä")),
        *((headers, {"form_token": token}) for headers in foreign),
    ]

    for method, path in routes(house):
        if method != "POST" or path == "/login":
            continue
        for headers, fields in attacks:
            answer = somebody.http.post(path, data=fields, headers=headers)
            assert answer.status_code == 403, (path, headers)
    logins = [
        Visitor(house).http.post("/login", data={"key": house.key()}, headers=headers)
        for headers in foreign
    ]

    assert [login.status_code for login in logins] == [403, 403]
    assert somebody.get("/batches").status_code == 200  # it was not logged out either
    assert len({token, others}) == 2


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"a=" + b"x" * 40_000, "application/x-www-form-urlencoded", 413),
        (b"{}", "application/json", 415),
        (b"a=%ff", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a=1" for _ in range(500)), "application/x-www-form-urlencoded", 400),
    ],
)
def test_forms_that_no_page_sends_are_refused(
    house: House, body: bytes, kind: str, status: int
) -> None:
    somebody = visitor(house)

    answer = somebody.http.post("/logout", content=body, headers={"content-type": kind})

    assert answer.status_code == status


def test_a_note_is_read_by_who_signed_it_and_by_nobody_else() -> None:
    sessions = Sessions(b"secret")
    session = sessions.begin("0123456789ab", now=NOW)
    note = sessions.write(session)

    assert sessions.read(note, now=NOW) == session
    assert Sessions(b"another").read(note, now=NOW) is None
    assert sessions.read(note, now=NOW + IDLE_S) is None
    assert sessions.read(note, now=NOW - 3600) is None
    for i in range(len(note)):
        changed = note[:i] + ("0" if note[i] != "0" else "1") + note[i + 1 :]
        assert sessions.read(changed, now=NOW) is None, i
    assert sessions.read("", now=NOW) is None


def test_a_session_is_renewed_while_it_is_used_but_not_for_ever() -> None:
    sessions = Sessions(b"secret")
    session = sessions.begin("0123456789ab", now=NOW)

    soon, later = (sessions.renewed(session, now=NOW + s) for s in (10, 1000))

    assert soon is None and later is not None
    assert later.ends_at == NOW + 1000 + IDLE_S
    assert sessions.form_token(later) == sessions.form_token(session)
    last = sessions.renewed(session, now=NOW + LONGEST_S - 5)
    assert last is not None and last.ends_at == NOW + LONGEST_S
