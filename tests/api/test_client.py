"""Our client against the service: submit, follow, take results, over connections that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from house import House, make_lines
from unruly_proxy import Request, Rule, UnrulyProxy, cut_after, lose_reply, unruly_proxy

from gristmill import client as gm
from gristmill.client import AsyncClient, Client
from gristmill.errors import UsageError

ROWS = [{"prompt": f"Say {i}", "label": i} for i in range(9)]


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[Client]:
    with Client(base_url=f"{house.service.url}/v1", api_key=house.key()) as client:
        yield client


@pytest.fixture
def proxy(house: House) -> Iterator[UnrulyProxy]:
    with unruly_proxy(house.service.url) as proxy:
        yield proxy


def through(proxy: UnrulyProxy, house: House, **options: Any) -> Client:
    client = Client(base_url=f"{proxy.url}/v1", api_key=house.key(), **options)
    client._driver._sleep = lambda seconds: None
    return client


def submit(client: Client, rows: Any = ROWS, **given: Any) -> Any:
    return client.submit(rows, **{"model": "M", "max_tokens": 5, **given})


@contextmanager
def paused(house: House) -> Iterator[None]:
    """While entered, no row is answered."""
    house.engine.paused = True
    try:
        yield
    finally:
        house.engine.paused = False


def is_content(request: Request) -> bool:
    return request.path.endswith("/content")


def test_rows_are_submitted_waited_for_and_taken_in_both_orders(client: Client) -> None:
    handle = submit(client, max_rows_per_batch=4)

    state = handle.wait(progress=False)
    ordered = [row.custom_id for row in handle.results()]
    as_they_came = [row.custom_id for row in handle.results(ordered=False)]

    assert (state.status, state.total, state.completed, len(handle.ids)) == ("completed", 9, 9, 3)
    assert ordered == [f"row-{i}" for i in range(1, 10)]
    assert sorted(as_they_came) == sorted(ordered)


def test_the_async_client_does_the_same(house: House) -> None:
    async def run() -> tuple[str, list[str | None], int]:
        async with AsyncClient(base_url=f"{house.service.url}/v1", api_key=house.key()) as client:
            handle = await client.submit(ROWS, model="M", max_tokens=5)
            rows = [row.text async for row in handle.results(ordered=False)]
            state = await handle.wait(progress=False)
            models = [model.id async for model in client.models.list()]
            return state.status, rows, len(models)

    status, texts, num_models = asyncio.run(run())

    assert (status, len(texts), num_models) == ("completed", 9, 1) and all(texts)


def test_rows_come_while_the_batch_runs(house: House, client: Client) -> None:
    house.pause_midway()
    handle = submit(client, [{"prompt": f"Say {i}"} for i in range(16)], max_tokens=20)
    rows = handle.results(ordered=False)
    first = next(rows)
    status = handle.status().status
    house.engine.resume()
    rest = list(rows)

    assert status == "in_progress" and len(rest) == 15
    again = list(handle.results(ordered=False, after=first.cursor))
    assert [row.custom_id for row in again] == [row.custom_id for row in rest]


def test_a_download_that_is_cut_at_30_percent_resumes(
    house: House, client: Client, proxy: UnrulyProxy, tmp_path: Path
) -> None:
    handle = submit(client)
    (batch,) = handle.wait(progress=False).parts
    whole = client.files.content(batch.output_file_id).content
    cut_at = len(whole) * 3 // 10
    proxy.rules = [Rule(cut_after(cut_at), is_content)]

    path = through(proxy, house).files.download(batch.output_file_id, tmp_path / "out.jsonl")

    assert path.read_bytes() == whole
    ranges = [one.headers.get("Range") or one.headers.get("range") for one in proxy.seen]
    assert ranges[0] is None and ranges[1] is not None and ranges[1].startswith("bytes=")
    assert 0 < int(ranges[1].removeprefix("bytes=").rstrip("-")) <= cut_at


def test_a_corrupted_byte_of_a_download_raises(
    house: House, client: Client, proxy: UnrulyProxy, tmp_path: Path
) -> None:
    def corrupt(request: Request, forward: Any) -> Any:
        reply = forward()
        wrong = bytearray(reply.body)
        wrong[len(wrong) // 2] ^= 1
        reply.body = bytes(wrong)
        return reply

    handle = submit(client)
    (batch,) = handle.wait(progress=False).parts
    for file_id in (batch.output_file_id, batch.input_file_id):  # one of control, one of the API
        proxy.rules = [Rule(corrupt, is_content)]
        with pytest.raises(gm.DownloadCorrupted):
            through(proxy, house).files.download(file_id, tmp_path / "out.jsonl")

    assert list(tmp_path.iterdir()) == []


def test_a_reply_that_is_lost_makes_no_second_batch(
    house: House, client: Client, proxy: UnrulyProxy
) -> None:
    proxy.rules = [
        Rule(lose_reply, lambda request: request.method == "POST" and request.path == "/v1/batches")
    ]
    before = {batch.id for batch in client.batches.list()}

    handle = submit(through(proxy, house))

    assert {batch.id for batch in client.batches.list()} - before == set(handle.ids)
    handle.wait(progress=False)


def test_failed_rows_run_again_and_a_batch_is_deleted(client: Client) -> None:
    lines = make_lines(1) + make_lines(1, best_of=3)
    requests = [json.loads(line) | {"custom_id": f"q{i}"} for i, line in enumerate(lines)]
    handle = client.submit(requests)
    state = handle.wait(progress=False)
    retried = handle.retry_failed()

    assert (state.completed, state.failed) == (1, 1)
    assert retried.wait(progress=False).parts[0].retry_of == handle.ids[0]
    assert client.batches.delete(handle.ids[0]).deleted
    with pytest.raises(gm.NotFoundError):
        client.batches.retrieve(handle.ids[0])


def test_a_batch_is_cancelled_and_its_rows_are_accounted_for(house: House, client: Client) -> None:
    with paused(house):
        handle = submit(client)
        while handle.status().status == "validating":
            house.wait_a_turn()
        handle.cancel()

    rows = list(handle.results(ordered=False))

    assert handle.status().status == "cancelled" and len(rows) == 9
    assert {row.error_code for row in rows} <= {None, "batch_cancelled"}
    assert [row.custom_id for row in handle.results()] == [f"row-{i}" for i in range(1, 10)]


def test_a_file_that_fails_validation_is_named_line_by_line(client: Client) -> None:
    file = client.files.create(file=("in.jsonl", b"{\n"))
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions")
    handle = client.handle(batch.id)

    assert handle.wait(progress=False).status == "failed"
    with pytest.raises(gm.BatchFailed, match="line 1"):
        list(handle.results())


def test_who_was_given_a_handle_may_still_ask_to_be_told(house: House, client: Client) -> None:
    with paused(house):
        handle = submit(client)
        secret = handle.on_done("https://example.com/hook")
        again = handle.on_done("https://example.com/hook")
        with pytest.raises(gm.BadRequestError, match="Update that one"):
            handle.on_done("https://example.com/other")
    handle.wait(progress=False)

    other = submit(client)
    other.wait(progress=False)
    with pytest.raises(gm.BadRequestError, match="completed already"):
        other.on_done("https://example.com/hook")
    assert secret == again == handle.webhook_secret and secret.startswith("whsec_")
    (event,) = client.webhooks.events.list(batch_id=handle.ids[0])
    (delivery,) = client.webhooks.events.retrieve(event.id).deliveries or ()
    assert delivery.batch_id == handle.ids[0]


def test_what_a_submission_would_take_is_told_and_leaves_no_file(client: Client) -> None:
    before = {file.id for file in client.files.list()}

    made = client.estimate(ROWS, model="M", max_tokens=5)

    assert (made.would_run, made.request_counts.total) == (True, 9)
    assert made.input_tokens == sum(len(row["prompt"]) for row in ROWS)  # type: ignore[arg-type]
    assert {file.id for file in client.files.list()} == before


def test_usage_is_told_by_day(client: Client) -> None:
    submit(client).wait(progress=False)

    (line, *_) = client.usage.list(group_by="day")

    assert line.model == "M" and line.request_counts.completed >= 9


def test_keys_are_made_listed_and_revoked(house: House, client: Client) -> None:
    made = client.keys.create(name="sdk", scopes=["batches:read"])
    other = client.with_options(api_key=made.key)
    list(other.batches.list())

    with pytest.raises(gm.PermissionDeniedError):
        other.files.create(file=b"")
    assert made.id in {key.id for key in client.keys.list()}
    rotated = client.keys.rotate(made.id, overlap_s=60)
    assert rotated.name == "sdk" and rotated.key != made.key
    assert client.keys.revoke(made.id).revoked_at is not None
    assert "gm_" not in repr(made)


def test_files_are_listed_retrieved_and_deleted(client: Client) -> None:
    made = client.files.create(file=("x.jsonl", b"{}\n"))

    assert client.files.retrieve(made.id).bytes == 3
    assert client.files.content(made.id).text == "{}\n"
    assert made.id in {file.id for file in client.files.list(purpose="batch", limit=1)}
    assert client.files.delete(made.id).deleted
    with pytest.raises(gm.NotFoundError):
        client.files.content(made.id)


def test_webhook_endpoints_are_managed_as_with_the_openai_package(client: Client) -> None:
    made = client.webhooks.create(
        name="w", url="https://example.com/hook", event_types=["batch.completed"]
    )
    changed = client.webhooks.update(made.id, enabled=False)
    rotated = client.webhooks.rotate_secret(made.id)

    assert changed.enabled is False and client.webhooks.retrieve(made.id).name == "w"
    assert made.signing_secret != rotated.signing_secret
    assert made.id in {one.id for one in client.webhooks.list()}
    assert list(client.webhooks.deliveries(made.id)) == []
    assert client.webhooks.delete(made.id).deleted
    assert "batch.progress" in client.webhooks.event_types.list().data
    handle = submit(client)
    handle.wait(progress=False)
    (event,) = client.webhooks.events.list(batch_id=handle.ids[0])
    assert client.webhooks.events.retrieve(event.id).type == "batch.completed"
    with pytest.raises(gm.BadRequestError, match="listens"):
        client.webhooks.events.replay(event.id)


def test_a_wrong_key_and_an_unknown_model_say_so(house: House, client: Client) -> None:
    with pytest.raises(gm.AuthenticationError):
        list(client.with_options(api_key="gm_wrong").models.list())
    with pytest.raises(gm.NotFoundError):
        client.models.retrieve("unknown")
    assert client.models.retrieve("M").id == "M"
    with pytest.raises(UsageError):
        client.batches.retrieve("a/b")
