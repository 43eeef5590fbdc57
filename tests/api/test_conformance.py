"""The conformance list with three released versions of the official client."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conformance import CHECKS
from house import House
from small_server import QuietHandler, served
from stage import Stage

from gristmill.api.access import Scope
from gristmill.errors import StoreError
from gristmill.ledger import quotas

#: The last ones of the two generations before the one that the suite has installed.
OLDER = ("1.109.1", "2.24.0")

TENANTS = ("acme", "files", "pages", "twice", "busy", "rival")


@dataclass
class Hand:
    """Moves the scenery while a check runs, from wherever the check runs."""

    house: House
    _stack: ExitStack = field(default_factory=ExitStack)
    _away: ExitStack = field(default_factory=ExitStack)
    _deliveries: list[dict[str, Any]] = field(default_factory=list)

    def pause(self) -> None:
        self.house.engine.paused = True

    def resume(self) -> None:
        self.house.engine.resume()

    def pause_midway(self) -> None:
        """Some rows are answered, then nothing is decoded any more."""
        self.house.pause_midway()

    def ahead(self, seconds: float) -> None:
        """So far is the service's time put forward."""
        self.house.clock.ahead_s = seconds

    def limit(self, tenant: str, requests_per_min: int) -> None:
        """So many requests the tenant may make."""
        with self.house.data.ledger.write() as conn:
            changes = {"requests_per_min": requests_per_min}
            quotas.set_own(conn, tenant, changes, defaults=set())

    def away(self) -> None:
        """The Ledger cannot be reached."""
        ledger = type(self.house.data.ledger)
        self._away.enter_context(patch.object(ledger, "read", side_effect=StoreError("away")))

    def back(self) -> None:
        self._away.close()

    def leave(self) -> None:
        self._away.close()
        self._stack.close()

    def receive(self) -> dict[str, str]:
        """Where webhooks may be sent."""
        deliveries = self._deliveries

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                deliveries.append({"headers": headers, "body": self.read_body().decode()})
                self.answer(200, b"")

        return {"url": f"{self._stack.enter_context(served(Handler))}/hook"}

    def delivery(self, batch_id: str) -> dict[str, Any]:
        """What was sent there of a batch, as soon as it has come."""
        self.house.wait_for(lambda: any(batch_id in one["body"] for one in self._deliveries))
        return next(one for one in self._deliveries if batch_id in one["body"])

    def lose_a_reply(self) -> dict[str, str]:
        """Another way to the service, on which the first answer gets lost."""
        url = self._stack.enter_context(lossy_proxy(self.house.service.url))
        return {"base_url": f"{url}/v1"}


def hand_handler(hand: Hand) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.read_body())
            move: Callable[..., Any] = getattr(hand, asked.pop("action"))
            self.answer(200, json.dumps(move(**asked)).encode())

    return Handler


@contextmanager
def lossy_proxy(target: str) -> Iterator[str]:
    """Does what it is asked, and closes the connection instead of the first answer."""
    lost: list[str] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            passed_on = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("host", "connection", "accept-encoding")
            }
            request = urllib.request.Request(target + self.path, self.read_body(), passed_on)
            with urllib.request.urlopen(request) as answer:
                body = answer.read()
            if not lost:
                lost.append(self.path)
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.answer(200, body)

    with served(Handler) as url:
        yield url
    assert lost


@pytest.fixture(scope="module")
def make_stage() -> Iterator[Callable[[str], Stage]]:
    with (
        House.opened(with_chat=True, webhook_allowed_networks="127.0.0.0/8") as house,
        ExitStack() as stack,
    ):
        hand = Hand(house)
        stack.callback(hand.leave)
        hand_url = stack.enter_context(served(hand_handler(hand)))

        def make(suffix: str) -> Stage:
            """With tenants of its own, who have nothing yet."""
            return Stage(
                base_url=f"{house.service.url}/v1",
                hand_url=hand_url,
                suffix=suffix,
                keys={
                    **{name: house.key(f"{name}{suffix}") for name in TENANTS},
                    "reader": house.key(f"acme{suffix}", [Scope.BATCHES_READ]),
                },
            )

        yield make


@pytest.fixture(scope="module")
def stage(make_stage: Callable[[str], Stage]) -> Stage:
    return make_stage("")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_official_client_finds_what_it_knows(
    stage: Stage, check: Callable[[Stage], None]
) -> None:
    num_before = len(stage.answers)

    check(stage)

    assert len(stage.answers) > num_before, "it looked at nothing"


@pytest.mark.slow
@pytest.mark.parametrize("version", OLDER)
def test_an_older_client_finds_what_it_knows(
    version: str, tmp_path: Path, make_stage: Callable[[str], Stage]
) -> None:
    stage = make_stage(f"-{version.replace('.', '-')}")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", f"openai=={version}"],
        capture_output=True,
        text=True,
    )
    if installed.returncode:
        pytest.skip(f"openai {version} cannot be installed here: {installed.stderr[-300:]}")
    (tmp_path / "stage.json").write_text(json.dumps(asdict(stage)))

    done = subprocess.run(
        [python, Path(__file__).with_name("conformance.py"), tmp_path / "stage.json"],
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"{version} {check.__name__}" for check in CHECKS]
