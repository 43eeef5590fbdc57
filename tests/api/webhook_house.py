"""What the tests of webhooks share: a service that may call this machine, and the client's view."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from house import House
from openai import OpenAI
from webhook_receiver import Call, Receiver

ENDS = ["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]
DAY_S = 86_400


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with (
        patch("gristmill.control.webhooks._LOOK_EVERY_S", 0.02),
        House.opened(webhook_allowed_networks="127.0.0.0/8") as house,
    ):
        yield house


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """One of its own for each test, so that no test hears of another's batches."""
    return re.sub(r"\W", "-", request.node.name)[:60]


def listen(client: OpenAI, receiver: Receiver, event_types: list[str] = ENDS) -> Any:
    return client.webhooks.create(name="n", url=receiver.url, event_types=event_types)  # type: ignore[arg-type]


def unwrap(client: OpenAI, call: Call, secret: str, *, now: float | None = None) -> Any:
    """By the official client, whose clock says `now`."""
    clock = SimpleNamespace(time=lambda: now if now is not None else time.time())
    with patch("openai.lib._webhooks.time", clock):
        return client.webhooks.unwrap(call.body, call.headers, secret=secret)


def log_of(client: OpenAI, endpoint_id: str) -> list[dict[str, Any]]:
    found: Any = client.get(f"/webhook_endpoints/{endpoint_id}/deliveries", cast_to=object)
    deliveries: list[dict[str, Any]] = found["data"]
    return deliveries


def post(client: OpenAI, path: str) -> Any:
    return client.post(path, cast_to=object)


def wait_until(is_so: Callable[[], Any]) -> Any:
    give_up_at = time.monotonic() + 60
    while not (found := is_so()):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    return found
