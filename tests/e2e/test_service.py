"""The service from end to end by the official client: in one process, and as two kinds of fleet."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache, partial
from typing import Any
from uuid import uuid4

import pytest
from aws_server import running_aws
from commands import NURSERY
from fake_engine import fake_text, fake_tokens
from gristmill_process import COMMAND, read_lines
from installations import (
    Fleet,
    Installation,
    as_file,
    commands_in,
    real_row,
    start_embedded,
    start_fleet,
    wait_for,
)
from local_run import BYTES, make_model_folder
from nursery import Nursery
from openai.types import Batch
from pipeline import Bench, fast_folder
from postgresql import postgresql_process as postgresql_process
from redis_server import RedisProcess, shared_server
from webhook_receiver import Receiver

from gristmill.control.accept import take_bells
from gristmill.fleet import lane_of
from gristmill.ledger import workers
from gristmill.models import find_model
from gristmill.queues.open import open_queue
from gristmill.settings import Settings
from gristmill.types import Job, Prompt, Row, SamplingParams

NUM_SHORT, NUM_LONG = 6, 4
ENDS: list[Any] = ["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]
REAL = (pytest.mark.slow, pytest.mark.real_model)


def with_real_model(name: str) -> object:
    return pytest.param(f"{name}-real", marks=REAL)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with closing(Nursery(NURSERY)) as nursery:
        yield nursery


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """One of embedded, redis and sqs; with the real model behind it, or a GatedEngine."""
    kind, _, real = request.param.partition("-")
    nursery = None if real else request.getfixturevalue("nursery")
    with ExitStack() as stack:
        folder = stack.enter_context(fast_folder())
        commands = stack.enter_context(commands_in(folder, nursery))
        if kind == "embedded":
            yield start_embedded(commands)
            return
        aws = stack.enter_context(running_aws())
        queue_url = broker_url = f"sqs://t-{uuid4().hex[:8]}?endpoint={aws.url}"
        redis = None
        if kind == "redis":
            redis = RedisProcess("redis6").start()
            stack.callback(redis.remove)
            queue_url, broker_url = redis.url, redis.url.removesuffix("0") + "1"
        yield start_fleet(
            commands,
            postgresql=request.getfixturevalue("postgresql_process"),
            queue_url=queue_url,
            broker_url=broker_url,
            store_url=aws.s3_url(aws.new_bucket()),
            redis=redis,
            num_controls=2 if redis else 1,
        )


@pytest.mark.parametrize(
    "installation",
    ["embedded", "redis", "sqs", *map(with_real_model, ("embedded", "redis", "sqs"))],
    indirect=True,
)
def test_batches_end_as_they_should_and_each_row_is_answered_once(
    installation: Installation, receiver: Receiver
) -> None:
    client = installation.client
    told = client.webhooks.create(name="ends", url=receiver.url, event_types=ENDS)
    short, long = rows(installation, NUM_SHORT), rows(installation, NUM_LONG, is_long=True)

    refused = installation.create(b"this is no JSON\n" + as_file(short))
    complete = installation.create(short)
    overdue, stopped = (installation.create([*short, *long]) for _ in range(2))
    for batch in (overdue, stopped):
        installation.wait(batch, lambda batch: num_completed(batch) >= NUM_SHORT)
    installation.let_time_run_out(overdue)
    installation.client.batches.cancel(stopped.id)
    refused, complete, overdue, stopped = map(
        installation.wait, (refused, complete, overdue, stopped)
    )

    assert refused.status == "failed" and refused.errors and refused.errors.data
    assert refused.errors.data[0].line == 1
    assert complete.status == "completed"
    assert_answered(installation, complete, short)
    assert stopped.status == "cancelled"
    assert_ended_early(installation, stopped, [*short, *long], "batch_cancelled")
    assert overdue.status == "expired"
    assert_ended_early(installation, overdue, [*short, *long], "batch_expired")
    calls = receiver.wait(4)
    events = [
        client.webhooks.unwrap(call.body, call.headers, secret=told.signing_secret)
        for call in calls
    ]
    assert sorted((event.type, event.data.id) for event in events) == sorted(
        (f"batch.{batch.status}", batch.id) for batch in (refused, complete, overdue, stopped)
    )
    client.webhooks.delete(told.id)
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:4] == [stopped.id, overdue.id, complete.id, refused.id]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("installation", ["redis", with_real_model("redis")], indirect=True)
def test_each_part_of_a_fleet_may_be_killed_in_the_middle_of_a_batch(
    installation: Fleet, receiver: Receiver
) -> None:
    fleet = installation
    fleet.hold_long_rows()
    assert fleet.redis and fleet.postgresql
    told = fleet.client.webhooks.create(name="ends", url=receiver.url, event_types=ENDS)
    short, long = rows(fleet, NUM_SHORT), rows(fleet, NUM_LONG, is_long=True)
    never_done = [*short, *(fleet.row(f"endless-{i}", is_endless=True) for i in range(NUM_LONG))]
    kill_and_start: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "api": (partial(fleet.kill, "api"), partial(fleet.start, "api")),
        "control": (partial(fleet.kill, "control"), partial(fleet.start, "control", "control")),
        "worker": (partial(fleet.kill, "worker"), partial(fleet.start, "worker")),
        "redis": (fleet.redis.kill, fleet.redis.start),
        "postgresql": (fleet.postgresql.kill, fleet.postgresql.start),
    }
    interrupted, late, stopped, overdue, refused = [], [], [], [], []
    for kill, start in kill_and_start.values():
        running = [fleet.create([*short, *long]), *(fleet.create(never_done) for _ in range(2))]
        for batch in running:
            fleet.wait(batch, lambda batch: num_completed(batch) >= 1)
        kill()
        start()
        fleet.client.batches.cancel(running[1].id)
        fleet.let_time_run_out(running[2])
        for batches, batch in zip((interrupted, stopped, overdue), running, strict=True):
            batches.append(batch)
        # What comes while something was away, or has just come back, is done as well.
        late.append(fleet.create(short))
        refused.append(fleet.create(b"this is no JSON\n"))
    ended = []
    for batches, status in (
        *((stopped, "cancelled"), (overdue, "expired"), (refused, "failed"), (late, "completed")),
        (interrupted, "completed"),
    ):
        if batches is interrupted:  # the others have ended without
            fleet.let_long_rows_end()
        batches[:] = map(fleet.wait, batches)
        assert {batch.status for batch in batches} == {status}
        ended += batches
    for batch in interrupted:
        assert_answered(fleet, batch, [*short, *long])
    for batch in late:
        assert_answered(fleet, batch, short)
    for batch in stopped:
        assert_ended_early(fleet, batch, never_done, "batch_cancelled")
    for batch in overdue:
        assert_ended_early(fleet, batch, never_done, "batch_expired")
    wanted = {(f"batch.{batch.status}", batch.id) for batch in ended}
    wait_for("all that is told", lambda: wanted <= told_of(fleet, receiver, told.signing_secret))
    assert told_of(fleet, receiver, told.signing_secret) == wanted
    fleet.client.webhooks.delete(told.id)


def told_of(installation: Installation, receiver: Receiver, secret: str) -> set[tuple[str, str]]:
    """Type and batch of all events so far. Who dies after sending one sends it again: one id."""
    found = {}
    for call in [*receiver.calls]:
        installation.client.webhooks.verify_signature(
            call.body, call.headers, secret=secret, tolerance=3600
        )
        found[call.id] = (call.event["type"], call.event["data"]["id"])
    assert len({*found.values()}) == len(found)
    return {*found.values()}


@pytest.mark.parametrize("installation", ["redis"], indirect=True)
def test_a_fleet_that_loses_power_in_the_middle_of_a_batch_goes_on(installation: Fleet) -> None:
    fleet = installation
    fleet.hold_long_rows()
    short, long = rows(fleet, NUM_SHORT), rows(fleet, NUM_LONG, is_long=True)
    batch = fleet.create([*short, *long])
    fleet.wait(batch, lambda batch: num_completed(batch) >= NUM_SHORT)

    for name in ("control", "worker", "api"):
        fleet.kill(name)
    assert fleet.redis and fleet.postgresql
    fleet.redis.kill()  # with all its messages
    fleet.postgresql.kill()
    fleet.redis.start()
    fleet.postgresql.start()
    fleet.let_long_rows_end()
    fleet.start("api", "control", "control", "worker")
    ended = fleet.wait(batch)

    assert ended.status == "completed"
    assert_answered(fleet, ended, [*short, *long])
    assert fleet.stop() == [0, 0, 0, 0]


def test_a_worker_process_is_known_until_it_ends_and_missed_when_it_is_killed(
    nursery: Nursery,
) -> None:
    queue_url = f"{shared_server('redis6').url}?prefix=t-{uuid4().hex[:8]}"
    with fast_folder() as folder, commands_in(folder, nursery) as commands:
        bench = Bench(folder)
        bench.queue = open_queue(queue_url, 60.0)
        model = make_model_folder(folder / "M")
        worker = ("worker", "--queue", queue_url, "--model", str(model), "--lanes", "pool,mine")

        def states() -> list[str]:
            take_bells(bench.control, wait_s=0.05)
            with bench.ledger.read() as conn:
                known = workers.list_workers(conn)
            return sorted(one.state_at(bench.clock()) for one in known)

        assert states() == []  # and from now on somebody listens
        first = commands.start(*worker, "--store", str(folder / "store"))
        wait_for("the first one", lambda: states() == ["ready"])
        assert first.stop() == 0
        wait_for("its end", lambda: states() == ["ended"])
        second = commands.start(*worker, "--store", str(folder / "store"))
        wait_for("the second one", lambda: states() == ["ended", "ready"])
        with bench.ledger.read() as conn:
            (alive,) = workers.list_alive(conn, bench.clock())
        second.kill()
        while take_bells(bench.control):
            pass
        bench.clock.advance(45)
        before = states()
        bench.clock.advance(1)

        assert alive.card.lanes == (lane_of(alive.card), "mine")
        assert alive.card.model.revision == find_model(str(model), settings=Settings()).pin.revision
        assert (before, states()) == (["ended", "ready"], ["ended", "lost"])
        bench.queue.close()
        bench.ledger.close()


def rows(
    installation: Installation, count: int, *, is_long: bool = False
) -> list[dict[str, object]]:
    kind = "long" if is_long else "short"
    return [installation.row(f"{kind}-{i}", is_long=is_long) for i in range(count)]


def num_completed(batch: Batch) -> int:
    return batch.request_counts.completed if batch.request_counts else 0


def assert_answered(
    installation: Installation, batch: Batch, asked: list[dict[str, object]]
) -> None:
    """Each row once, in order, with the answer that it must have."""
    lines = installation.lines(batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [row["custom_id"] for row in asked]
    assert batch.error_file_id is None
    for line, row in zip(lines, asked, strict=True):
        body = line["response"]["body"]
        assert body["choices"][0]["text"] == answer_to(installation, row)


def assert_ended_early(
    installation: Installation, batch: Batch, asked: list[dict[str, object]], code: str
) -> None:
    """Each row once, in one of the two files; those without an answer say why."""
    answered = installation.lines(batch.output_file_id)
    failed = installation.lines(batch.error_file_id)
    ids = [line["custom_id"] for line in answered + failed]
    assert sorted(ids) == sorted(str(row["custom_id"]) for row in asked)
    assert {line["error"]["code"] for line in failed} == {code}
    counts = batch.request_counts
    assert counts and (counts.completed, counts.failed) == (len(answered), len(failed))


def answer_to(installation: Installation, row: dict[str, object]) -> str:
    """What the Engine answers to a row that runs alone."""
    body = row["body"]
    assert isinstance(body, dict)
    if installation.is_real:
        return real_answers()[str(row["custom_id"])]
    prompt = Prompt(tuple(BYTES.index(one) for one in body["prompt"].replace(" ", "\u0120")))
    params = SamplingParams(body["max_tokens"], seed=body["seed"])
    return fake_text(fake_tokens(Job((Row(0, "row"),), (prompt,), params)))


@cache
def real_answers() -> dict[str, str]:
    """By custom_id, what one `gristmill run` without any interruption answers."""
    asked = [real_row(f"short-{i}", "smollm2-135m") for i in range(NUM_SHORT)]
    asked += [real_row(f"long-{i}", "smollm2-135m", is_long=True) for i in range(NUM_LONG)]
    with fast_folder() as folder:
        (folder / "in.jsonl").write_bytes(as_file(asked))
        subprocess.run(
            [COMMAND, "run", "in.jsonl", "-o", "out.jsonl", "--model", "smollm2-135m", "-q"],
            cwd=folder,
            check=True,
        )
        lines = read_lines(folder / "out.jsonl")
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}
