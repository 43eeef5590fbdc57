"""The conformance list of the OpenAI Files, Batches and Webhooks surface, with the real client.

Needs nothing but the package `openai`, so that it runs with any released version of it:

    python conformance.py STAGE.json

where the file has the fields of `Stage`. `test_conformance.py` sets the stage, and runs the same
checks with the version of this environment. Objects are parsed twice: as the client does it, and
strictly, by the types that its authors generate from the published document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
from conformance_webhooks import check_8_webhooks
from openai.types import Batch, Completion, CompletionUsage, FileDeleted, FileObject, Model
from openai.types.chat import ChatCompletion
from stage import (
    CHAT,
    COMPLETIONS,
    Stage,
    counts_of,
    create,
    line,
    raw,
    refusal,
    rows,
    strictly,
    upload,
    wait,
)


def check_1_files(stage: Stage) -> None:
    client = stage.client("files")
    text = f"{line('a')}\n{line('b')}\n"
    made = client.files.with_raw_response.create(
        file=("in.jsonl", text.encode()),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    file = strictly(FileObject, raw(made))
    assert (file.bytes, file.status, file.purpose) == (len(text), "processed", "batch")
    assert file.expires_at == file.created_at + 3600
    assert client.files.wait_for_processing(file.id).id == file.id
    assert strictly(FileObject, raw(client.files.with_raw_response.retrieve(file.id))) == file
    assert client.files.content(file.id).text == text
    listed = raw(client.files.with_raw_response.list())
    assert {"object", "data", "first_id", "last_id", "has_more"} <= set(listed)
    assert [strictly(FileObject, one).id for one in listed["data"]] == [file.id]
    assert [one.id for one in client.files.list(limit=1)] == [file.id]
    gone = strictly(FileDeleted, raw(client.files.with_raw_response.delete(file.id)))
    assert gone.deleted and gone.id == file.id
    refusal(openai.NotFoundError, lambda: client.files.retrieve(file.id))


def check_2_create(stage: Stage) -> None:
    client = stage.client()
    file = upload(client, [line("a")])
    least = client.batches.with_raw_response.create(
        input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h"
    )
    batch = strictly(Batch, raw(least))
    assert (batch.status, batch.metadata) == ("validating", None)
    assert batch.expires_at == batch.created_at + 24 * 3600
    full = client.batches.create(
        input_file_id=file.id,
        endpoint=COMPLETIONS,
        completion_window="24h",
        metadata={"k": "\u00e9\u2028</script>"},
        extra_body={
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
            "priority": 5,
        },
    )
    assert (full.model_extra or {})["priority"] == 5
    ended = wait(client, full)
    assert ended.metadata == {"k": "\u00e9\u2028</script>"}
    output = client.files.retrieve(ended.output_file_id or "")
    assert output.expires_at == output.created_at + 3600
    # What goes beyond the published document travels in the same call.
    longer = client.batches.create(
        input_file_id=file.id,
        endpoint=COMPLETIONS,
        completion_window="7d",  # type: ignore[arg-type]
    )
    assert longer.expires_at == longer.created_at + 7 * 24 * 3600
    wait(client, batch)
    wait(client, longer)


def check_3_pages(stage: Stage) -> None:
    client = stage.client("pages")
    file = upload(client, ["{"])  # fails validation at once
    made = [
        client.batches.create(
            input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h"
        ).id
        for _ in range(103)
    ]
    for limit in (100, 7):
        assert [one.id for one in client.batches.list(limit=limit)] == made[::-1]
    wait(client, client.batches.retrieve(made[0]))
    page = client.batches.list(limit=2, after=made[2])
    assert [one.id for one in page.data] == [made[1], made[0]] and not page.has_next_page()
    first = client.batches.list(limit=101 - 1)
    last = first.data[-1]
    wait(client, last)
    client.delete(f"/batches/{last.id}", cast_to=object)
    assert [one.id for one in first.get_next_page().data] == made[2::-1]
    refusal(openai.NotFoundError, lambda: client.batches.list(after="batch_never"))


def check_4_errors(stage: Stage) -> None:
    client = stage.client()
    expected: list[tuple[Any, Callable[[], Any], str | None, str | None]] = [
        (openai.BadRequestError, lambda: client.batches.list(limit=0), "invalid_value", "limit"),
        (
            openai.AuthenticationError,
            lambda: stage.client(api_key="gm_wrong").models.list(),
            "invalid_api_key",
            None,
        ),
        (
            openai.PermissionDeniedError,
            lambda: stage.client("reader").files.list(),
            "missing_scope",
            None,
        ),
        (
            openai.NotFoundError,
            lambda: client.batches.retrieve("batch_never"),
            "not_found",
            "batch_id",
        ),
    ]
    for kind, call, code, param in expected:
        error = refusal(kind, call)
        assert (error.code, error.param) == (code, param)
        assert error.type and error.request_id.startswith("req_")

    stage.do("pause")
    running = wait(client, create(client, [line("a")]), lambda b: b.status == "in_progress")
    conflict = refusal(
        openai.ConflictError, lambda: client.delete(f"/batches/{running.id}", cast_to=object)
    )
    assert conflict.response.headers["x-should-retry"] == "false"
    stage.do("resume")
    wait(client, running)

    stage.do("away")
    try:
        outage = refusal(openai.InternalServerError, lambda: client.batches.list())
    finally:
        stage.do("back")
    assert outage.status_code == 503 and float(outage.response.headers["retry-after"]) > 0

    stage.do("limit", tenant=f"busy{stage.suffix}", requests_per_min=3)
    busy = refusal(
        openai.RateLimitError, lambda: [stage.client("busy").models.list() for _ in range(9)]
    )
    assert 0 < float(busy.response.headers["retry-after"]) <= 60 and busy.code


def check_5_sent_twice(stage: Stage) -> None:
    client = stage.client("twice")
    file = upload(client, [line("a")])
    fields: dict[str, Any] = {
        "input_file_id": file.id,
        "endpoint": COMPLETIONS,
        "completion_window": "24h",
    }

    def same(**headers: str) -> str:
        return client.batches.create(**fields, extra_headers=headers).id

    assert same(**{"Idempotency-Key": "one"}) == same(**{"Idempotency-Key": "one"})
    assert same(**{"Idempotency-Key": "two"}) != same(**{"Idempotency-Key": "one"})
    num_before = len(list(client.batches.list()))
    # The client tries again by itself when a reply is lost, and says so in a header.
    through = stage.do("lose_a_reply")["base_url"]
    patient = stage.client("twice", base_url=through, max_retries=2)
    batch = patient.batches.create(**fields, metadata={"n": "1"})
    found = list(client.batches.list())
    assert len(found) == num_before + 1 and found[0].id == batch.id
    assert client.batches.create(**fields, metadata={"n": "1"}).id != batch.id


def check_6_validation(stage: Stage) -> None:
    client = stage.client()
    batch = create(client, [line("a"), "{", line("a"), line("b", url=CHAT)])
    assert batch.status == "validating"
    ended = wait(client, batch)
    assert ended.status == "failed" and ended.failed_at
    assert ended.output_file_id is None and ended.error_file_id is None
    assert ended.errors is not None and ended.errors.data is not None
    found = [(error.line, error.code) for error in ended.errors.data]
    assert found == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "url_mismatch"),
    ], found
    assert all(error.message for error in ended.errors.data)
    # Before there is a batch, when that is asked.
    for lines, status in (([line("a")], "processed"), ([line("a"), "{"], "error")):
        asked = {"validate_for": COMPLETIONS}
        file = upload(client, lines, extra_body=asked)
        assert file.status in ("uploaded", status)
        checked = client.files.wait_for_processing(file.id, poll_interval=0.1)
        assert checked.status == status
    assert (checked.status_details or "").startswith("Line 2: ")
    assert checked in list(client.files.list(limit=2))


def check_7_ends(stage: Stage) -> None:
    client = stage.client()
    good, bad = [line(f"g{i}") for i in range(3)], [line(f"b{i}", best_of=3) for i in range(2)]
    for lines, counts in (
        (good, (3, 0)),
        (bad, (0, 2)),
        ([*good, *bad], (3, 2)),
    ):
        assert counts_of(client, wait(client, create(client, lines))) == ("completed", *counts)

    many = [line(f"r{i}") for i in range(24)]
    for how in ("cancelled", "expired"):
        stage.do("pause_midway")
        batch = create(client, many, completion_window="1h")
        batch = wait(client, batch, lambda b: b.request_counts and b.request_counts.completed)
        try:
            if how == "cancelled":
                assert client.batches.cancel(batch.id).status == "cancelling"
            else:
                stage.do("ahead", seconds=3601)
            ended = wait(client, batch)
            status, completed, failed = counts_of(client, ended)
        finally:
            stage.do("ahead", seconds=0)
            stage.do("resume")
        assert (status, completed + failed) == (how, 24) and 0 < completed < 24
        codes = {one["error"]["code"] for one in rows(client, ended.error_file_id)}
        assert codes == {f"batch_{how}"}


def check_9_tenants(stage: Stage) -> None:
    client, rival = stage.client(), stage.client("rival")
    batch = wait(client, create(client, [line("a")]))
    for call in (
        lambda: rival.batches.retrieve(batch.id),
        lambda: rival.batches.cancel(batch.id),
        lambda: rival.files.retrieve(batch.input_file_id),
        lambda: rival.files.content(batch.output_file_id or ""),
        lambda: rival.files.delete(batch.output_file_id or ""),
        lambda: rival.batches.create(
            input_file_id=batch.input_file_id, endpoint=COMPLETIONS, completion_window="24h"
        ),
    ):
        refusal(openai.NotFoundError, call)
    assert list(rival.batches.list()) == [] and list(rival.files.list()) == []


def check_10_typed(stage: Stage) -> None:
    client = stage.client()
    listed = raw(client.models.with_raw_response.list())
    for model in listed["data"]:
        strictly(Model, model)
    mixed = [line("a", logprobs=2), line("b", best_of=3)]
    batch = wait(client, create(client, mixed))
    strictly(Batch, raw(client.batches.with_raw_response.retrieve(batch.id)))
    for one in raw(client.batches.with_raw_response.list())["data"]:
        strictly(Batch, one)
    for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
        strictly(FileObject, raw(client.files.with_raw_response.retrieve(file_id or "")))
    (answer,) = rows(client, batch.output_file_id)
    completion = strictly(Completion, answer["response"]["body"])
    assert completion.choices[0].finish_reason in ("stop", "length")
    assert isinstance(completion.usage, CompletionUsage)
    chat = [line("c", url=CHAT, logprobs=True, top_logprobs=2)]
    batch = wait(client, create(client, chat, endpoint=CHAT))
    (answer,) = rows(client, batch.output_file_id)
    # Of a chat completion some documented fields are only there where they are asked for.
    found = ChatCompletion.model_validate(answer["response"]["body"], strict=True)
    assert found.choices[0].message.role == "assistant" and found.usage is not None


CHECKS: tuple[Callable[[Stage], None], ...] = (
    check_1_files,
    check_2_create,
    check_3_pages,
    check_4_errors,
    check_5_sent_twice,
    check_6_validation,
    check_7_ends,
    check_8_webhooks,
    check_9_tenants,
    check_10_typed,
)


def main(path: str) -> None:
    stage = Stage(**json.loads(Path(path).read_text()))
    for check in CHECKS:
        check(stage)
        print(openai.__version__, check.__name__)


if __name__ == "__main__":
    main(sys.argv[1])
