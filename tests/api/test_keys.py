"""Keys: rotated with an overlap, never worth more than their maker; what routes ask of them."""

from __future__ import annotations

import json
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


def test_the_command_line_makes_keys_over_the_api_with_a_key_that_may(house: House) -> None:
    environ = {
        "GRISTMILL_BASE_URL": f"{house.service.url}/v1",
        "GRISTMILL_API_KEY": house.key("remote"),
        "GRISTMILL_CONFIG": "none.toml",
    }

    def run(*arguments: str, code: int = 0, **more: str) -> str:
        found = CliRunner(env=environ | more).invoke(gristmill, ["keys", *arguments])
        assert found.exit_code == code, found.output
        return found.output.strip()

    made = json.loads(run("create", "--name", "ci", "--expires", "1d", "--json"))
    new = run("rotate", made["key"], "--overlap", "1h")
    new_id = new.split("_")[1]
    listed = {line["id"]: line for line in map(json.loads, run("list").splitlines())}
    table = run("ls", "--format", "table")
    gone = run("revoke", new_id)
    reader = run("create", "--scope", "batches:read")

    assert re.fullmatch(r"gm_\w+", made["key"]) and re.fullmatch(r"gm_\w+", new)
    assert listed[made["id"]]["name"] == listed[new_id]["name"] == "ci"
    assert listed[made["id"]]["expires_at"] < made["expires_at"]
    assert new_id in table and "live" in table and made["key"] not in table
    assert gone == f"The key {new_id} is revoked."
    assert new_id not in run("list", "-q", GRISTMILL_API_KEY=house.key("another"))
    assert "lacks the scope" in run("list", code=5, GRISTMILL_API_KEY=reader)
    assert "own tenant" in run("create", "--tenant", "x", code=2)
    here = ("--data-dir", str(house.folder / "data"))
    assert "one of them" in run("list", *here, "--profile", "x", code=2)
    assert "is no key" in run("revoke", "0123456789ab", code=1)
    # Where a ledger is named, it is the ledger: of all tenants.
    assert {"remote", "another"} <= {
        json.loads(line)["tenant"] for line in run("list", *here).splitlines()
    }


@pytest.mark.parametrize("depth", [17, 500])
def test_bodies_that_are_nested_deeply_are_refused(house: House, depth: int) -> None:
    body = b'{"name": ' + b"[" * depth + b"]" * depth + b"}"
    with house.http() as http:
        answer = http.post("/v1/api_keys", content=body)
        packed = http.post("/v1/api_keys", content=b"{}", headers={"content-encoding": "gzip"})

    assert (answer.status_code, document(answer)["error"]["code"]) == (400, "invalid_json")
    assert (packed.status_code, document(packed)["error"]["code"]) == (415, "unsupported_encoding")
