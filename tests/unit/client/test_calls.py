"""Tries, errors and pages: as users of the openai package know them, for both clients."""

from __future__ import annotations

import asyncio
from email.utils import formatdate

import httpx2
import openai
import pytest
from client_stage import batch, breaks, refuses, says, sent

from gristmill import client as gm
from gristmill.client.retry import delay_s, retry_after_s, should_retry
from gristmill.errors import UsageError


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_what_may_go_better_is_tried_again_with_the_same_idempotency_key(stage, status):
    stage.answers = [refuses(status), breaks, says(batch())]

    stage.client().batches.create(input_file_id="file-1", endpoint="/v1/completions")

    keys = {request.headers["idempotency-key"] for request in stage.requests}
    counts = [request.headers["x-stainless-retry-count"] for request in stage.requests]
    assert (len(keys), counts) == (1, ["0", "1", "2"])
    assert len(stage.waits) == 2 and 0.375 <= stage.waits[0] <= 0.5
    assert 0.75 <= stage.waits[1] <= 1.0


@pytest.mark.parametrize("lost", [breaks, refuses(502), refuses(500)])
@pytest.mark.parametrize("rotates", [False, True])
def test_a_key_whose_reply_is_lost_is_not_made_twice(stage, lost, rotates):
    key = {"id": "key_1", "object": "api_key", "key": "gm_new"}
    stage.answers = [refuses(429), lost, says(key)]
    keys = stage.client().keys

    with pytest.raises((gm.APIConnectionError, gm.InternalServerError)):
        keys.rotate("key_1") if rotates else keys.create(name="n")

    assert len(stage.requests) == 2, "only what was not done is tried again"


def test_two_calls_have_two_idempotency_keys(stage):
    stage.answers = [says(batch())]
    client = stage.client()

    for _ in range(2):
        client.batches.create(input_file_id="file-1", endpoint="/v1/completions")

    first, second = (request.headers["idempotency-key"] for request in stage.requests)
    assert first != second


def test_the_service_says_when_to_come_again(stage):
    stage.answers = [
        refuses(429, retry_after="7"),
        refuses(503, retry_after_ms="250"),
        says(batch()),
    ]

    stage.client().batches.retrieve("batch_1")

    assert stage.waits == [7.0, 0.25]


def test_a_service_that_wants_more_than_two_minutes_is_not_asked_again(stage):
    stage.answers = [refuses(429, retry_after="121")]

    with pytest.raises(gm.RateLimitError):
        stage.client().batches.retrieve("batch_1")

    assert len(stage.requests) == 1


def test_x_should_retry_decides():
    assert should_retry(400, {"x-should-retry": "true"})
    assert not should_retry(500, {"x-should-retry": "false"})
    assert not should_retry(404, {})


def test_a_date_in_retry_after_counts_from_now():
    headers = {"retry-after": formatdate(1000, usegmt=True)}

    assert retry_after_s(headers, now=990.0) == 10.0
    assert retry_after_s({"retry-after": "soon"}) is None
    assert delay_s(1, {"retry-after": "0"}, noise=lambda: 0.0) == 0.5
    assert delay_s(9, {}, noise=lambda: 1.0) == 6.0


def test_after_the_last_try_the_error_is_raised(stage):
    stage.answers = [refuses(503)]

    with pytest.raises(gm.InternalServerError):
        stage.client(max_retries=1).batches.retrieve("batch_1")
    assert len(stage.requests) == 2
    with pytest.raises(gm.InternalServerError):
        stage.client().batches.retrieve("batch_1", max_retries=0)
    assert len(stage.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 418, 422, 429, 500, 503])
def test_each_status_has_the_error_of_the_same_name_as_in_the_openai_package(stage, status):
    stage.answers = [refuses(status, x_request_id="req_1")]
    theirs = openai.OpenAI(
        api_key="k",
        base_url="http://mill/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(stage.answer)),
    )

    with pytest.raises(openai.APIStatusError) as expected:
        theirs.batches.retrieve("batch_1")
    with pytest.raises(gm.APIStatusError) as raised:
        stage.client(max_retries=0).batches.retrieve("batch_1")

    error = raised.value
    assert type(error).__name__ == type(expected.value).__name__
    for name in ("status_code", "code", "param", "type", "request_id", "body"):
        assert getattr(error, name) == getattr(expected.value, name), name
    assert "said the test" in str(error) and "req_1" in str(error)


def test_no_answer_is_an_error_of_the_connection(stage):
    def takes_long(request):
        raise httpx2.ReadTimeout("slow")

    stage.answers = [breaks]
    with pytest.raises(gm.APIConnectionError, match="nobody listens"):
        stage.client(max_retries=0).batches.retrieve("batch_1")
    stage.answers = [takes_long]
    with pytest.raises(gm.APITimeoutError):
        stage.client(max_retries=0).batches.retrieve("batch_1")


@pytest.mark.parametrize("document", ["<html>", {"object": "batch"}, {"id": 3, "status": []}])
def test_an_answer_of_something_else_says_so(stage, document):
    stage.answers = [says(document)]

    with pytest.raises(gm.APIResponseValidationError, match="base URL"):
        stage.client().batches.retrieve("batch_1")


def test_an_error_that_is_no_json_is_shown(stage):
    stage.answers = [lambda request: httpx2.Response(502, text="<h1>Bad gateway</h1>")]

    with pytest.raises(gm.InternalServerError, match="Bad gateway"):
        stage.client(max_retries=0).batches.retrieve("batch_1")


def test_unknown_fields_are_kept_and_the_request_id_is_there(stage):
    stage.answers = [says(batch(new_field={"x": 1}), x_request_id="req_7")]

    found = stage.client().batches.retrieve("batch_1")

    assert found.to_dict()["new_field"] == {"x": 1} and found.request_id == "req_7"


def test_lists_go_on_over_pages(stage):
    pages = [
        {"object": "list", "data": [batch("b1"), batch("b2")], "has_more": True},
        {"object": "list", "data": [batch("b3")], "has_more": False},
    ]
    stage.answers = [says(page) for page in pages]

    page = stage.client().batches.list(limit=2)
    ids = [one.id for one in page]

    assert ids == ["b1", "b2", "b3"] and [one.id for one in page.data] == ["b1", "b2"]
    assert page.has_next_page() and stage.requests[1].url.params["after"] == "b2"
    assert stage.requests[1].url.params["limit"] == "2"


def test_async_lists_are_awaited_or_iterated(stage):
    pages = [
        {"object": "list", "data": [batch("b1")], "has_more": True},
        {"object": "list", "data": [batch("b2")], "has_more": False},
    ]

    async def run():
        async with stage.async_client() as client:
            stage.answers = [says(page) for page in pages]
            ids = [one.id async for one in client.batches.list()]
            stage.answers = [says(page) for page in pages]
            first = await client.batches.list()
            second = await first.get_next_page()
            return ids, first.data[0].id, second.data[0].id, second.has_next_page()

    assert asyncio.run(run()) == (["b1", "b2"], "b1", "b2", False)


def test_the_async_client_tries_again_too(stage):
    stage.answers = [refuses(429, retry_after="3"), breaks, says(batch())]

    async def run():
        async with stage.async_client() as client:
            return await client.batches.create(input_file_id="f", endpoint="/v1/completions")

    assert asyncio.run(run()).id == "batch_1"
    assert stage.waits[0] == 3.0
    assert len({request.headers["idempotency-key"] for request in stage.requests}) == 1


def test_bodies_hold_what_was_given_and_extra_fields(stage):
    stage.answers = [says(batch())]

    stage.client().batches.create(
        input_file_id="file-1",
        endpoint="/v1/completions",
        metadata={"k": "v"},
        extra_body={"priority": 3},
    )

    assert sent(stage.requests[0]) == {
        "input_file_id": "file-1",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        "metadata": {"k": "v"},
        "priority": 3,
    }


@pytest.mark.parametrize("wrong", ["", "../files", "a/b", "a?b", "ä"])
def test_ids_that_would_make_another_url_are_refused(stage, wrong):
    with pytest.raises(UsageError, match="is no id"):
        stage.client().batches.retrieve(wrong)
    assert stage.requests == []


def test_a_call_may_have_a_timeout_of_its_own(stage):
    stage.answers = [says(batch())]
    client = stage.client(timeout=60.0)

    client.batches.retrieve("batch_1", timeout=1.5)
    client.batches.retrieve("batch_1")

    own, usual = (request.extensions["timeout"] for request in stage.requests)
    assert (own["read"], own["connect"], usual["read"], usual["connect"]) == (1.5, 1.5, 60.0, 5.0)
