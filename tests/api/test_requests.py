"""Requests that are wrong, odd, large or sent twice; and what answers look like."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import openai
import pytest
from house import House, document, make_lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.errors import StoreError

#: What a batch has beyond the published document.
EXTENSIONS = {"retry_of", "priority", "max_total_tokens", "max_cost", "cost", "progress", "timings"}
FIELDS = {"endpoint": "/v1/completions", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"endpoint": 5}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": None}, "completion_window"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": True}}, None),
        ({"priority": "high"}, "priority"),
    ],
)
def test_a_batch_that_is_asked_for_wrongly_is_refused(
    house: House, changes: dict[str, Any], param: str | None
) -> None:
    with house.http() as http:
        answer = http.post("/v1/batches", json={"input_file_id": "file-1", **FIELDS, **changes})

    error = document(answer)["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'{"input_file_id": NaN}',
        b'{"input_file_id": "\\ud800"}',
        b'{"input_file_id": "\xff"}',
        b'{"input_file_id": "\\u0000", "endpoint": "/v1/completions", "completion_window": "1h"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 5000,
        b'{"metadata": {"a": 1e999}}',
    ],
)
def test_odd_json_is_the_callers_fault(house: House, body: bytes) -> None:
    with house.http() as http:
        for path in ("/v1/batches", "/v1/api_keys"):
            answer = http.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (400, 404), (path, answer.content)
            assert document(answer)["error"]["message"]


def test_bodies_and_headers_have_a_limit(house: House) -> None:
    with house.http() as http:
        large = http.post("/v1/batches", content=b" " * 300_000)
        chunked = http.post("/v1/batches", content=(b" " * 1000 for _ in range(300)))
        long = http.get("/v1/files", headers={"x-long": "x" * 200_000})
        long_url = http.get("/v1/files", params={"x": "x" * 9000})

    assert (long_url.status_code, document(long_url)["error"]["code"]) == (414, "url_too_long")
    for answer in (large, chunked):
        assert (answer.status_code, document(answer)["error"]["code"]) == (413, "request_too_large")
    assert 400 <= long.status_code < 500


def test_a_slash_too_many_leads_to_the_same_host_whatever_the_caller_calls_it(
    house: House,
) -> None:
    with house.http() as http:
        answer = http.get("/v1/files/?limit=1", headers={"host": "elsewhere.example"})
        followed = http.get("/v1/files/?limit=1", follow_redirects=True)
        nowhere = http.get(f"{house.service.url}//elsewhere.example/")

    assert (answer.status_code, answer.headers["location"]) == (307, "/v1/files?limit=1")
    assert document(followed)["object"] == "list" and nowhere.status_code == 404


def test_a_request_that_only_batches_answer_is_told_so(house: House) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        house.client().chat.completions.create(model="M", messages=[])

    assert refusal.value.code == "only_in_batches"
    assert "client.batches.create" in refusal.value.message


def test_a_wrong_parameter_is_named_even_where_it_may_stand_several_times(house: House) -> None:
    with house.http() as http:
        answers = {
            name: http.get(path, params={name: "x"})
            for path, name in (("/v1/usage", "group_by"), ("/v1/batches", "status"))
        }

    for name, answer in answers.items():
        error = document(answer)["error"]
        assert (answer.status_code, error["param"]) == (400, name)
        assert error["message"].startswith(f"{name} is 'x'")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"]),
    path=st.sampled_from(
        [
            *("/v1/files", "/v1/files/{}", "/v1/files/{}/content", "/v1/batches", "/v1/batches/{}"),
            *("/v1/batches/{}/cancel", "/v1/batches/{}/results", "/v1/models/{}", "/v1/api_keys"),
            *("/v1/api_keys/{}", "/{}", "/v1/models"),
        ]
    ),
    name=st.text(max_size=12),
    query=st.dictionaries(
        st.sampled_from(["after", "limit", "order", "purpose", "x"]), st.text(max_size=30)
    ),
    body=st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=9),
            lambda inner: st.dictionaries(
                st.sampled_from(["input_file_id", "endpoint", "metadata", "name", "scopes", "x"]),
                inner,
            ),
            max_leaves=6,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_nothing_that_a_caller_sends_is_a_fault_of_the_service(
    house: House, method: str, path: str, name: str, query: dict[str, str], body: bytes
) -> None:
    from urllib.parse import quote

    with house.http("odd") as http:
        answer = http.request(
            method,
            path.format(quote(name, safe="")),
            params=query,
            content=body,
            headers={"content-type": "application/json"},
        )

    assert answer.status_code < 500
    assert answer.headers["x-request-id"].startswith("req_")
    if answer.status_code >= 400 and method != "HEAD":
        assert set(document(answer)["error"]) == {"message", "type", "param", "code"}


def test_errors_arrive_as_the_exceptions_of_the_official_client(house: House) -> None:
    client = house.client()

    with pytest.raises(openai.NotFoundError) as missing:
        client.batches.retrieve("batch_1")
    with pytest.raises(openai.AuthenticationError) as anonymous:
        house.client(api_key="gm_wrong").models.list()
    with pytest.raises(openai.BadRequestError) as wrong:
        client.batches.list(limit=0)
    with pytest.raises(openai.NotFoundError) as nowhere:
        client.post("/nowhere", cast_to=object)

    for found in (missing, anonymous, wrong, nowhere):
        assert found.value.request_id and found.value.request_id.startswith("req_")
        assert found.value.type == "invalid_request_error"
    assert (missing.value.code, missing.value.param) == ("not_found", "batch_id")
    assert anonymous.value.code == "invalid_api_key"
    assert (wrong.value.code, wrong.value.param) == ("invalid_value", "limit")


def test_an_outage_is_answered_with_when_to_come_back(house: House) -> None:
    away = patch.object(type(house.data.ledger), "read", side_effect=StoreError("gone"))
    with house.http() as http:
        http.get("/v1/models")
        with away:
            answers = [http.get("/v1/batches"), http.get("/readyz"), http.get("/healthz")]

    assert [answer.status_code for answer in answers] == [503, 503, 200]
    assert answers[0].headers["retry-after"] == "5"
    assert document(answers[0])["error"]["type"] == "server_error"
    assert b"gone" not in answers[0].content


def test_a_fault_is_an_answer_with_an_id_and_without_its_reason(house: House) -> None:
    # Nothing that the rest of the service calls as well.
    broken = patch("gristmill.ledger.submissions.list_page", side_effect=RuntimeError("a canary"))
    with house.http() as http:
        http.get("/v1/models")
        with broken:
            answer = http.get("/v1/batches")
        again = http.get("/v1/batches")

    assert (answer.status_code, again.status_code) == (500, 200)
    assert answer.headers["x-request-id"].startswith("req_")
    assert document(answer)["error"]["code"] == "internal_error"
    assert b"canary" not in answer.content


def test_models_are_listed_and_found_by_any_of_their_names(house: House) -> None:
    client = house.client()

    (model,) = client.models.list()

    assert (model.id, model.object) == ("M", "model") and model.created
    assert client.models.retrieve("M") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_the_same_idempotency_key_gives_the_same_batch(house: House) -> None:
    client = house.client("twice")
    file = house.upload(make_lines(1), tenant_id="twice")

    def create(key: str, **fields: Any) -> str:
        batch = client.batches.create(
            input_file_id=file.id,
            **{**FIELDS, **fields},
            extra_headers={"Idempotency-Key": key},
        )
        return batch.id

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(create, ["a"] * 6))
    with pytest.raises(openai.BadRequestError) as reused:
        create("a", metadata={"other": "request"})
    with pytest.raises(openai.BadRequestError):
        create("x" * 256)

    assert len(ids) == 1 and create("b") not in ids
    assert reused.value.code == "idempotency_key_reused"
    assert len(list(client.batches.list())) == 2
    described = [k for k in house.data.store.list("t/twice/b/") if k.endswith("batch.json")]
    assert len(described) == 2
    file = house.upload(make_lines(1), tenant_id="another")
    client = house.client("another")
    assert create("a") not in ids


def test_a_request_that_the_official_client_sends_again_makes_no_second_batch(
    house: House,
) -> None:
    client = house.client("resend")
    file = house.upload(make_lines(1), tenant_id="resend")

    def create(retry: int, **fields: Any) -> str:
        batch = client.batches.create(
            input_file_id=file.id,
            **{**FIELDS, **fields},
            extra_headers={"x-stainless-retry-count": str(retry)},
        )
        return batch.id

    first = create(0)

    assert create(1) == create(2) == first
    assert create(0) != first
    assert create(1, metadata={"a": "b"}) != first


def test_answers_have_what_the_official_client_reads(house: House) -> None:
    raw = house.client().batches.with_raw_response.create(
        input_file_id=house.upload(make_lines(1)).id,
        **FIELDS,
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )

    batch = raw.parse()
    assert set(raw.http_response.json()) - set(type(batch).model_fields) <= EXTENSIONS
    assert set(type(batch).model_fields) <= set(raw.http_response.json())
    ended = house.wait(batch)
    output = house.client().files.retrieve(ended.output_file_id or "")
    assert output.expires_at == output.created_at + 3600
