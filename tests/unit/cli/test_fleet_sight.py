"""What `watch` tells of the workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.cli.fleet_sight import LOOK_EVERY_S, FleetSight
from gristmill.client import errors
from gristmill.client.steps import Reply, Request
from gristmill.client.workers import Worker

FOUND = [
    Worker(id="w1", state="ready", model="M", rows=12, tokens_per_second=100.5),
    Worker(id="w2", state="ready", model="M", rows=1, tokens_per_second=20.0),
    Worker(id="w3", state="lost", model="M", rows=64, tokens_per_second=900.0),
    Worker(id="w4", state="loading", model="another", adapters=["support@0123"]),
]


class Service:
    """Answers or refuses; `num_calls` is how often it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.num_calls = answer, 0
        self.workers = SimpleNamespace(list=self._list)

    def _list(self, *, limit: int) -> list[Worker]:
        self.num_calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        found: list[Worker] = self.answer
        return found[:limit]


def refusal(kind: type[errors.APIStatusError], status: int) -> errors.APIStatusError:
    request = Request("GET", "http://mill/v1/workers", {}, {}, None, None, 0)
    return kind("no", request=request, reply=Reply(status, {}, b"{}"), body=None)


def test_the_workers_of_the_models_of_a_batch_are_told_every_ten_seconds() -> None:
    now = [0.0]
    sight, service = FleetSight(lambda: now[0]), Service(FOUND)

    lines = [sight.told(service, ["M"]) for _ in range(3)]  # type: ignore[arg-type]
    service.answer = []
    now[0] = LOOK_EVERY_S
    after = sight.told(service, ["M"])  # type: ignore[arg-type]

    assert lines == ["1 lost, 2 ready; 13 rows in work, 120.5 tokens/s"] * 3
    assert (service.num_calls, after) == (2, "none is known")


def test_of_an_adapter_those_workers_are_told_that_have_it() -> None:
    sight = FleetSight(lambda: 0.0)

    told = sight.told(Service(FOUND), ["support"])  # type: ignore[arg-type]

    assert told == "1 loading; 0 rows in work, 0.0 tokens/s"


@pytest.mark.parametrize(
    ("kind", "status"), [(errors.PermissionDeniedError, 403), (errors.NotFoundError, 404)]
)
def test_a_key_that_may_not_see_them_asks_once(
    kind: type[errors.APIStatusError], status: int
) -> None:
    now = [0.0]
    sight, service = FleetSight(lambda: now[0]), Service(refusal(kind, status))

    for now[0] in (0.0, 100.0):
        assert sight.told(service, ["M"]) == ""  # type: ignore[arg-type]

    assert service.num_calls == 1


def test_what_fails_for_a_moment_keeps_what_was_told_last() -> None:
    now = [0.0]
    sight, service = FleetSight(lambda: now[0]), Service(FOUND)
    first = sight.told(service, ["another"])  # type: ignore[arg-type]
    service.answer = refusal(errors.InternalServerError, 500)
    now[0] = LOOK_EVERY_S

    assert sight.told(service, ["another"]) == first  # type: ignore[arg-type]
    assert first.startswith("1 loading")
