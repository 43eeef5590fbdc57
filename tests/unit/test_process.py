"""Signals and health of a process that a supervisor runs."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import struct
import threading
import urllib.error
import urllib.request
import weakref

import pytest

from gristmill.errors import UsageError
from gristmill.process.garbage import look_for_garbage_seldom
from gristmill.process.health import Health, HealthServer, parse_address
from gristmill.process.signals import StopSignals


def fetch(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_before_there_is_work_the_first_signal_ends_the_process() -> None:
    ended: list[int] = []
    with StopSignals(grace_s=60, at_once_code=76, end=ended.append) as signals:
        os.kill(os.getpid(), signal.SIGTERM)

    assert ended == [0] and not signals.stop.is_set()


def test_with_work_the_first_signal_asks_and_the_second_ends_b70() -> None:
    ended: list[int] = []
    with StopSignals(grace_s=60, at_once_code=76, end=ended.append) as signals:
        signals.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        asked = signals.stop.is_set() and not ended
        os.kill(os.getpid(), signal.SIGINT)

    assert asked and ended == [76]


def test_sigusr1_drains_and_the_sigterm_that_follows_is_no_second_one() -> None:
    ended: list[int] = []
    with StopSignals(grace_s=60, at_once_code=76, end=ended.append) as signals:
        signals.hold()
        os.kill(os.getpid(), signal.SIGUSR1)
        asked = signals.stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        waited = not ended
        os.kill(os.getpid(), signal.SIGTERM)

    assert asked and waited and ended == [76]


def test_the_end_of_the_grace_ends_the_process_b70() -> None:
    ended: list[int] = []
    with StopSignals(grace_s=0.01, at_once_code=76, end=ended.append) as signals:
        signals.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        while not ended:
            pass

    assert ended == [76]


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health(live=True, ready=True, state="running"), 200, 200),
        (Health(live=True, ready=False, state="loading"), 200, 503),
        (Health(live=False, ready=True, state="running", troubles=("hangs",)), 503, 503),
    ],
)
def test_health_is_told_over_http_b36(health: Health, live: int, ready: int) -> None:
    with HealthServer(("127.0.0.1", 0), lambda: health) as server:
        assert fetch(f"{server.url}/livez")[0] == live
        code, body = fetch(f"{server.url}/readyz")

    assert code == ready
    assert (body["state"], body["troubles"]) == (health.state, list(health.troubles))


def test_an_address_is_a_host_and_a_port_or_off() -> None:
    assert parse_address("off") is None
    assert parse_address("0.0.0.0:8080") == ("0.0.0.0", 8080)
    for wrong in ("8080", ":80", "localhost", "localhost:99999", "localhost:x"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            parse_address(wrong)


def test_an_address_that_is_taken_is_said() -> None:
    with HealthServer(("127.0.0.1", 0), lambda: Health(True, True, "running")) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(UsageError, match="--health"):
            HealthServer(("127.0.0.1", port), lambda: Health(True, True, "running"))


def test_a_process_that_looks_for_garbage_seldom_finds_it_all_the_same() -> None:
    class Circle:
        def __init__(self) -> None:
            self.itself = self

    before = gc.get_threshold()
    try:
        look_for_garbage_seldom()
        assert gc.get_threshold()[0] > before[0] and gc.isenabled()
        first = weakref.ref(Circle())
        num_circles = 0
        while first() is not None and num_circles < 10**6:
            Circle()
            num_circles += 1
    finally:
        gc.set_threshold(*before)

    assert first() is None


def test_whoever_asks_for_health_and_goes_leaves_no_traceback(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    asked, gone = threading.Event(), threading.Event()

    def read() -> Health:
        asked.set()
        assert gone.wait(60)
        return Health(True, True, "running")

    with HealthServer(("127.0.0.1", 0), read) as server:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as caller:
            caller.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert asked.wait(60)
            # What is not read any more is refused, rather than kept for it.
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
        for thread in threading.enumerate():
            if "process_request" in thread.name:
                thread.join(60)

    assert "Traceback" not in "".join(capfd.readouterr()) and not caplog.records
