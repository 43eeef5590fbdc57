"""From a batch to its receiver, through the whole service."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from house import House, as_file, make_lines
from test_up import Up, folder_with_model
from webhook_house import DAY_S, ENDS, listen, log_of, post, unwrap, wait_until
from webhook_house import house as house
from webhook_house import receiver as receiver
from webhook_house import tenant as tenant
from webhook_receiver import Call, Receiver, Reply


def test_every_end_and_progress_are_told(house: House, receiver: Receiver, tenant: str) -> None:
    client = house.client(tenant)
    secret = listen(client, receiver, [*ENDS, "batch.progress"]).signing_secret
    house.wait(house.create(b"no json\n", tenant_id=tenant), tenant_id=tenant)
    house.engine.paused = True
    cancelled = house.create(make_lines(8), tenant_id=tenant)
    house.wait(cancelled, lambda batch: batch.status == "in_progress", tenant_id=tenant)
    client.batches.cancel(cancelled.id)
    house.engine.paused = False
    house.wait(cancelled, tenant_id=tenant)
    house.pause_ingest()
    house.create(make_lines(1), tenant_id=tenant, completion_window="1s")
    house.clock.ahead_s += 2
    wait_until(lambda: "batch.expired" in receiver.events)
    house.resume_ingest()
    house.pause_midway(20)
    house.create(make_lines(40), tenant_id=tenant)
    wait_until(lambda: "batch.progress" in receiver.events)
    house.engine.resume()

    wait_until(lambda: "batch.completed" in receiver.events)

    ends = [kind for kind in receiver.events if kind != "batch.progress"]
    assert sorted(ends) == sorted(ENDS)
    kinds = {
        type(unwrap(client, call, secret, now=house.clock())).__name__ for call in receiver.calls
    }
    assert kinds >= {f"Batch{end.title()[6:]}WebhookEvent" for end in ENDS}
    told = [c.event["data"] for c in receiver.calls if c.event["type"] == "batch.progress"]
    assert told and all(0 < one["percent"] < 100 for one in told)


def test_a_receiver_down_for_a_day_hears_it_once_it_is_up(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    endpoint = listen(client, receiver)
    receiver.stop()
    batch = house.wait(house.create(make_lines(1), tenant_id=tenant), tenant_id=tenant)
    down_until = house.clock() + DAY_S

    def attempt_next(num_attempts: int) -> dict[str, Any]:
        """Let time pass until the next attempt, and wait for what is told of it."""
        (one,) = log_of(client, endpoint.id)
        if one["next_attempt_at"]:
            house.clock.ahead_s += max(0.0, one["next_attempt_at"] + 1 - house.clock())
        found: dict[str, Any] = wait_until(
            lambda: (
                (d := log_of(client, endpoint.id)) and len(d[0]["attempts"]) > num_attempts and d[0]
            )
        )
        return found

    (delivery,) = wait_until(lambda: log_of(client, endpoint.id))
    while house.clock() < down_until:
        delivery = attempt_next(len(delivery["attempts"]))
    receiver.start()
    delivery = attempt_next(len(delivery["attempts"]))

    (call,) = receiver.wait(1)
    event = unwrap(client, call, endpoint.signing_secret, now=house.clock())
    assert event.data.id == batch.id and event.id == call.id == delivery["event_id"]
    assert delivery["status"] == "delivered" and delivery["delivered_at"] >= down_until
    errors = [attempt["error"] for attempt in delivery["attempts"]]
    assert errors == ["connection_failed"] * (len(errors) - 1) + [None] and len(errors) >= 6
    assert client.webhooks.retrieve(endpoint.id).num_failures == 0  # type: ignore[attr-defined]


def test_410_disables_and_the_owner_sees_it_mends_it_and_replays(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    made = listen(client, receiver)
    receiver.answer = lambda call: Reply(410, body=b"moved \xff\0 away")
    house.create(make_lines(1), tenant_id=tenant)
    wait_until(lambda: not client.webhooks.retrieve(made.id).enabled)  # type: ignore[attr-defined]

    (failed,) = log_of(client, made.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        post(client, f"/webhook_events/{failed['event_id']}/replay")
    receiver.answer = lambda call: Reply()
    enabled: Any = client.webhooks.update(made.id, extra_body={"enabled": True})
    post(client, f"/webhook_events/{failed['event_id']}/replay")
    receiver.wait(2)
    (delivered,) = wait_until(
        lambda: (log := log_of(client, made.id)) and log[0]["status"] == "delivered" and log
    )
    disabled: Any = client.webhooks.update(made.id, extra_body={"enabled": False})

    assert failed["status"] == "failed" and failed["next_attempt_at"] is None
    assert failed["attempts"][0]["status_code"] == 410
    assert failed["attempts"][0]["response_body"] == "moved \ufffd\ufffd away"
    assert refusal.value.code == "nobody_listens"
    assert enabled.enabled and enabled.disabled_reason is None and not disabled.enabled
    assert receiver.calls[0].id == receiver.calls[1].id
    assert [a["status_code"] for a in delivered["attempts"]] == [410, 200]
    assert not any("secret" in name or "signature" in name for name in delivered["attempts"][0])


def test_B55_a_hanging_receiver_delays_no_batch_and_no_other_receiver(
    house: House, receiver: Receiver, tenant: str
) -> None:
    client = house.client(tenant)
    over = threading.Event()

    def hang(call: Call) -> Reply:
        over.wait(60)
        return Reply()

    with Receiver(hang) as deaf:
        listen(client, deaf)
        listen(client, receiver)
        made = [house.create(make_lines(1), tenant_id=tenant) for _ in range(10)]
        ended = [house.wait(batch, tenant_id=tenant) for batch in made]
        receiver.wait(10)
        was_hanging = len(deaf.calls)
        over.set()
        deaf.wait(10)

    assert {batch.status for batch in ended} == {"completed"}
    assert was_hanging < 10
    assert {call.id for call in deaf.calls} == {call.id for call in receiver.calls}


@pytest.mark.slow  # unit/control/test_webhook_delivery.py has the same in one process
def test_B55_a_service_killed_between_end_and_delivery_delivers_when_it_is_back(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRISTMILL_WEBHOOK_ALLOWED_NETWORKS", "127.0.0.0/8")
    with folder_with_model() as folder, ExitStack() as stack:
        first = Up(folder, crash_point="published=exit")
        stack.callback(first.process.kill)
        key = first.first_key()
        client = first.client(key)
        secret = listen(client, receiver).signing_secret
        file = client.files.create(file=("in.jsonl", as_file(make_lines(2))), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        code = first.process.wait(60)
        second = Up(folder)
        stack.callback(second.process.kill)
        client = second.client(key)
        receiver.wait(1)
        ended = client.batches.retrieve(batch.id)
        events: Any = client.get("/webhook_events", cast_to=object)
        stopped = second.stop(signal.SIGTERM)

    assert (code, stopped, ended.status) == (137, 0, "completed")
    # It may have been told in the very moment of its end. Whoever hears it twice sees it is one.
    assert {call.id for call in receiver.calls} == {event["id"] for event in events["data"]}
    assert len({call.body for call in receiver.calls}) == 1
    assert unwrap(client, receiver.calls[-1], secret).data.id == batch.id
