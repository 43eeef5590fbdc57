"""What happened in a span of time is told again, over the API and on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from house import House, document, make_lines
from typer.testing import CliRunner
from webhook_house import house as house
from webhook_house import listen, wait_until
from webhook_house import receiver as receiver
from webhook_house import tenant as tenant
from webhook_receiver import Receiver, Reply

from gristmill.api import webhook_replay
from gristmill.cli import app
from gristmill.client import Client


@pytest.fixture
def client(house: House, tenant: str) -> Iterator[Client]:
    with Client(base_url=f"{house.service.url}/v1", api_key=house.key(tenant)) as client:
        yield client


def batches_an_hour_apart(house: House, tenant: str, count: int) -> list[float]:
    """When each of them ended, and what it told was sent."""
    times = []
    for _ in range(count):
        house.wait(house.create(make_lines(1), tenant_id=tenant), tenant_id=tenant)
        times.append(house.clock())
        house.clock.ahead_s += 3600
    return times


def test_a_span_of_time_is_told_again_in_its_order_with_the_same_ids(
    house: House, receiver: Receiver, tenant: str, client: Client
) -> None:
    listen(house.client(tenant), receiver)
    times = batches_an_hour_apart(house, tenant, 4)
    first = [call.id for call in receiver.wait(4)]
    since, until = times[1] - 60, times[2] + 60

    with patch.object(webhook_replay, "_MAX_EVENTS", 1):  # more than one call
        done = client.webhooks.events.replay_between(since, datetime.fromtimestamp(until, UTC))
    again = [call.id for call in receiver.wait(6)[4:]]

    assert (done.num_events, done.num_deliveries) == (2, 2)
    assert sorted(again) == sorted(first[1:3])


def test_what_has_arrived_is_left_out_if_that_is_wished(
    house: House, receiver: Receiver, tenant: str, client: Client
) -> None:
    endpoint = listen(house.client(tenant), receiver)
    times = batches_an_hour_apart(house, tenant, 1)
    receiver.wait(1)
    receiver.answer = lambda call: Reply(410)
    batches_an_hour_apart(house, tenant, 1)
    wait_until(lambda: not client.webhooks.retrieve(endpoint.id).enabled)
    receiver.answer = lambda call: Reply()
    client.webhooks.update(endpoint.id, enabled=True)
    with Receiver() as other:
        listen(house.client(tenant), other)

        done = client.webhooks.events.replay_between(
            times[0] - 60, webhook_endpoint_id=endpoint.id, undelivered_only=True
        )
        told = receiver.wait(3)
        failed_only = client.webhooks.events.replay_between(
            times[0] - 60, event_types=["batch.failed"]
        )

    assert (done.num_events, done.num_deliveries) == (2, 1)
    assert [call.id for call in told[1:]] == [told[1].id] * 2 and not other.calls
    assert failed_only.num_events == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "since"),
        ({"since": "1h"}, "since"),
        ({"since": 5, "until": 5}, "until"),
        ({"since": 5, "event_types": ["batch.born"]}, "event_types.0"),
        ({"since": 5, "color": "red"}, "color"),
    ],
)
def test_a_span_that_is_none_is_refused(
    house: House, tenant: str, body: dict[str, Any], param: str
) -> None:
    with house.http(tenant) as http:
        answer = http.post("/v1/webhook_events/replay", json=body)

    assert answer.status_code == 400 and document(answer)["error"]["param"] == param


def test_ids_of_others_are_unknown_and_nothing_goes_to_a_disabled_endpoint(
    house: House, receiver: Receiver, tenant: str, client: Client
) -> None:
    made = listen(house.client(tenant), receiver)
    client.webhooks.update(made.id, enabled=False)

    def replay(of: str, **more: str) -> httpx2.Response:
        with house.http(of) as http:
            return http.post("/v1/webhook_events/replay", json={"since": 0, **more})

    assert replay(f"{tenant}-2", webhook_endpoint_id=made.id).status_code == 404
    assert replay(tenant, after="evt_x").status_code == 404
    disabled = replay(tenant, webhook_endpoint_id=made.id)
    assert document(disabled)["error"]["code"] == "nobody_listens"


def test_the_command_line_replays_one_event_or_a_span(
    house: House, receiver: Receiver, tenant: str, client: Client
) -> None:
    listen(house.client(tenant), receiver)
    house.wait(house.create(make_lines(1), tenant_id=tenant), tenant_id=tenant)
    (call,) = receiver.wait(1)
    environ = {
        "GRISTMILL_BASE_URL": f"{house.service.url}/v1",
        "GRISTMILL_API_KEY": house.key(tenant),
    }

    def replay(*arguments: str) -> tuple[int, str]:
        done = CliRunner(env=environ).invoke(app, ["webhooks", "replay", *arguments])
        return done.exit_code, done.output.strip()

    assert replay(call.id) == (0, "1 event is sent again to 1 endpoint.")
    receiver.wait(2)
    date = datetime.fromtimestamp(house.clock() - 3600, UTC).isoformat()
    until = datetime.fromtimestamp(house.clock() + 3600, UTC).isoformat()
    assert replay("--since", date, "--until", until) == (0, "1 event, sent again 1 time.")
    assert receiver.wait(3)[2].id == call.id
    assert (
        replay("--since", "365d", "--event", "batch.failed")[1] == "0 events, sent again 0 times."
    )
    for wrong, words in (
        ((), "Say what"),
        ((call.id, "--since", "1h"), "Say what"),
        ((call.id, "--undelivered"), "go with --since"),
        (("--since", "yesterday"), "is no time"),
    ):
        code, told = replay(*wrong)
        assert code == 2 and words in told
