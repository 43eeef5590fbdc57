"""Rows become batches: cut at the caps, all or none, shown as one."""

from __future__ import annotations

import asyncio
import json

import pytest
from client_mill import Mill
from client_stage import refuses, sent

from gristmill.client import BadRequestError
from gristmill.errors import DataInvalid, UsageError


@pytest.fixture
def mill(stage) -> Mill:
    mill = Mill()
    stage.answers = [mill.answer]
    return mill


def prompts(count):
    return [{"prompt": f"p{i}"} for i in range(count)]


def lines_of(content):
    return [json.loads(line) for line in content.splitlines()]


def test_rows_become_one_batch_with_what_was_given(stage, mill):
    handle = stage.client().submit(
        prompts(2),
        model="M",
        temperature=0,
        completion_window="1h",
        metadata={"k": "v"},
        priority=3,
        max_total_tokens=99,
        max_cost=2,
        extra_body={"more": 1},
    )

    (file,) = mill.files.values()
    assert [line["body"] for line in lines_of(file)] == [
        {"model": "M", "temperature": 0, "prompt": f"p{i}"} for i in range(2)
    ]
    assert handle.ids == ("batch_1",) and handle.webhook_secret is None
    assert sent(stage.requests[-1]) == {
        "input_file_id": "file-1",
        "endpoint": "/v1/completions",
        "completion_window": "1h",
        "metadata": {"k": "v"},
        "priority": 3,
        "max_total_tokens": 99,
        "max_cost": 2.0,
        "more": 1,
    }


@pytest.mark.parametrize("caps", [{"max_rows_per_batch": 2}, {"max_bytes_per_batch": 220}])
def test_more_rows_than_a_batch_may_have_become_several_that_are_shown_as_one(stage, mill, caps):
    handle = stage.client().submit(prompts(5), model="M", metadata={"k": "v"}, **caps)

    files = [lines_of(content) for content in mill.files.values()]
    assert [len(lines) for lines in files] == [2, 2, 1]
    ids = [line["custom_id"] for lines in files for line in lines]
    assert ids == [f"row-{i}" for i in range(1, 6)]
    assert handle.ids == ("batch_1", "batch_2", "batch_3")
    told = [batch["metadata"] for batch in mill.batches.values()]
    assert [one["gristmill_part"] for one in told] == ["1/3", "2/3", "3/3"]
    assert len({one["gristmill_submission"] for one in told}) == 1 and told[0]["k"] == "v"


def test_all_parts_tell_one_url_and_sign_with_one_secret(stage, mill):
    client = stage.client()
    handle = client.submit(
        prompts(2), model="M", max_rows_per_batch=1, webhook_url="https://x/hook"
    )

    told = {(one["webhook_url"], one["webhook_secret"]) for one in mill.batches.values()}
    assert told == {("https://x/hook", handle.webhook_secret)}
    assert handle.webhook_secret.startswith("whsec_")


def test_nothing_runs_when_a_row_is_wrong(stage, mill):
    rows = [*prompts(3), {"other": 1}]

    with pytest.raises(DataInvalid, match="Row 4"):
        stage.client().submit(rows, model="M", max_rows_per_batch=2)

    assert mill.batches == {}


def test_when_a_batch_cannot_be_created_those_that_were_are_cancelled(stage, mill):
    mill.refuse_from = 3

    with pytest.raises(BadRequestError):
        stage.client().submit(prompts(3), model="M", max_rows_per_batch=1)

    assert mill.cancelled == ["batch_1", "batch_2"]


def test_one_that_cannot_be_cancelled_keeps_no_other_running(stage, mill):
    mill.refuse_from = 4

    def answer(request):
        answered = mill.answer(request)
        if request.url.path.endswith("/batch_2/cancel"):
            return refuses(400, "batch_not_cancellable")(request)
        return answered

    stage.answers = [answer]
    with pytest.raises(BadRequestError) as caught:
        stage.client().submit(prompts(4), model="M", max_rows_per_batch=1)

    assert caught.value.code == "no_more"
    assert mill.cancelled == ["batch_1", "batch_2", "batch_3"]


@pytest.mark.parametrize(
    ("rows", "given", "words"),
    [
        ([], {}, "no rows"),
        (prompts(1), {"max_rows_per_batch": 0}, "at least one row"),
        ([{"prompt": "x"}, {"input": "x"}], {}, "one endpoint"),
        ([{"prompt": object()}], {}, "cannot be written as JSON"),
    ],
)
def test_a_submission_that_cannot_be_is_refused(stage, mill, rows, given, words):
    with pytest.raises(UsageError, match=words):
        stage.client().submit(rows, model="M", **given)
    assert mill.batches == {}


def test_rows_are_read_only_as_they_are_needed(stage, mill):
    most = 0

    def rows():
        nonlocal most
        for i in range(50):
            most = max(most, i - 10 * len(mill.files))
            yield {"prompt": str(i)}

    stage.client().submit(rows(), model="M", max_rows_per_batch=10)

    assert len(mill.files) == 5 and most <= 10


def test_the_async_client_submits_too(stage, mill):
    async def run():
        async with stage.async_client() as client:
            return await client.submit(prompts(3), model="M", max_rows_per_batch=2)

    assert asyncio.run(run()).ids == ("batch_1", "batch_2")


def test_temporary_files_are_gone_afterwards(stage, mill, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    stage.client().submit(prompts(3), model="M", max_rows_per_batch=2)
    with pytest.raises(DataInvalid):
        stage.client().submit([*prompts(3), {"x": 1}], model="M", max_rows_per_batch=2)

    assert list(tmp_path.iterdir()) == []
