"""Keys: rotated with an overlap, never worth more than their maker; what routes ask of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from example_bodies import example_body
from house import ALL, House, document
from typer.testing import CliRunner

from gristmill.api.access import DEFAULT_SCOPES, Access, Scope
from gristmill.cli import app as gristmill

#: What anybody may see, and what any key may.
NO_KEY = {"/healthz", "/readyz"}
NO_SCOPE = {"/v1/models", "/v1/models/{model}", "/v1/tenants/{tenant_id}"}


def access_at(house: House, ahead_s: float) -> Access:
    """Another API process, so many seconds later."""
    return Access(
        house.data.ledger, pepper=house.data.pepper, clock=lambda: house.clock() + ahead_s
    )


def test_a_rotated_key_is_good_beside_the_new_one_for_a_while(house: House) -> None:
    soon = int(house.clock()) + 86400
    with house.http("turning") as http:
        wanted = {"name": "ci", "scopes": ["files:read"], "expires_at": soon}
        old = document(http.post("/v1/api_keys", json=wanted))
        new = document(http.post(f"/v1/api_keys/{old['id']}/rotate", json={"overlap_s": 3600}))
        listed = {key["id"]: key for key in document(http.get("/v1/api_keys"))["data"]}
        http.delete(f"/v1/api_keys/{old['id']}")
        ended = http.post(f"/v1/api_keys/{old['id']}/rotate", json={})
        late = http.post(f"/v1/api_keys/{new['id']}/rotate", json={"expires_at": 1})

    assert (new["name"], new["scopes"]) == ("ci", ["files:read"])
    assert new["id"] != old["id"] and soon <= new["expires_at"] <= soon + 5
    assert listed[old["id"]]["expires_at"] <= int(house.clock()) + 3600
    assert (ended.status_code, document(ended)["error"]["code"]) == (400, "key_has_ended")
    assert late.status_code == 400


def test_both_keys_of_a_rotation_are_let_in_until_the_overlap_is_over(house: House) -> None:
    old_text, old = house.service.access.make_key("overlap", name="n")
    new_text, _ = house.service.access.replace_key(old, overlap_s=3600, expires_at=None)

    before, after = access_at(house, 3500), access_at(house, 3700)

    assert before.find(str(old_text)) is not None and before.find(str(new_text)) is not None
    assert after.find(str(old_text)) is None and after.find(str(new_text)) is not None


def test_nobody_makes_a_key_that_may_more_than_his_own(house: House) -> None:
    _, operators = house.service.access.make_key("climb", name="o", scopes=(Scope.OPERATOR,))
    with house.http("climb") as admin:
        answers = [
            admin.post("/v1/api_keys", json={"scopes": ["operator"]}),
            admin.post(f"/v1/api_keys/{operators.id}/rotate", json={}),
            admin.get("/v1/audit_events", params={"all_tenants": True}),
            admin.get("/v1/usage", params={"all_tenants": True}),
        ]

    assert [document(answer)["error"]["code"] for answer in answers] == ["missing_scope"] * 4
    assert Scope.OPERATOR not in (*DEFAULT_SCOPES, *ALL) and Scope.ADMIN not in DEFAULT_SCOPES


def test_every_route_asks_for_a_key_and_nearly_every_one_for_a_scope(house: House) -> None:
    spec = document(house.http().get("/openapi.json"))
    text, _ = house.service.access.make_key("weak", name="n", scopes=())
    found: dict[str, list[int]] = {}

    with house.http(headers={}) as anybody:
        weak = {"authorization": f"Bearer {text}"}
        for path, operations in spec["paths"].items():
            for method, operation in operations.items():
                url = re.sub(r"{\w+}", "weak", path)
                body = example_body(spec, operation)
                sent: dict[str, Any] = {} if body is None else {"json": body}
                found[f"{method} {path}"] = [
                    anybody.request(method, url, **sent).status_code,
                    anybody.request(method, url, headers=weak, **sent).status_code,
                ]

    assert len(found) > 20
    for route, (without_key, without_scope) in found.items():
        path = route.partition(" ")[2]
        if path in NO_KEY:
            assert without_key == 200, route
            continue
        assert without_key == 401, route
        assert without_scope == 403 or path in NO_SCOPE, route


def test_the_command_line_rotates_and_revokes_keys(house: House) -> None:
    where = ["--data-dir", str(house.folder / "data")]

    def run(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(gristmill, ["keys", *arguments, *where])
        return found.exit_code, found.output.strip()

    _, old = run("create", "--tenant", "shell", "--scope", "operator")
    code, new = run("rotate", old, "--overlap", "1h")
    revoked = run("revoke", new)
    again = run("rotate", new)
    access = access_at(house, 3700)

    assert code == 0 and re.fullmatch(r"gm_\w+", new) and new != old
    assert revoked[0] == 0 and again[0] == 2
    assert access.find(old) is None and access.find(new) is None
    assert run("rotate", "gm_nobody")[0] == 2


@pytest.mark.parametrize("depth", [17, 500])
def test_bodies_that_are_nested_deeply_are_refused(house: House, depth: int) -> None:
    body = b'{"name": ' + b"[" * depth + b"]" * depth + b"}"
    with house.http() as http:
        answer = http.post("/v1/api_keys", content=body)
        packed = http.post("/v1/api_keys", content=b"{}", headers={"content-encoding": "gzip"})

    assert (answer.status_code, document(answer)["error"]["code"]) == (400, "invalid_json")
    assert (packed.status_code, document(packed)["error"]["code"]) == (415, "unsupported_encoding")
