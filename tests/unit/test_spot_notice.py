"""A machine of AWS that will be taken away says so, and its worker drains."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from metadata_server import MetadataServer
from pydantic import ValidationError

from gristmill.process.signals import StopSignals
from gristmill.process.spot_notice import MetadataService, SpotWatch, find_notice, spot_watched
from gristmill.settings import Settings


@pytest.fixture
def machine() -> Iterator[MetadataServer]:
    with MetadataServer() as machine:
        yield machine


@pytest.mark.parametrize("early", [False, True])
def test_there_is_no_notice_until_there_is_one(machine: MetadataServer, early: bool) -> None:
    service = MetadataService(machine.url)

    before = find_notice(service, early=early)
    machine.interrupt()
    after = find_notice(service, early=early)

    assert before is None
    assert after == "spot notice: the machine gets action=terminate at=2026-01-01T00:02Z"


def test_a_recommendation_counts_for_those_who_want_to_know_early(machine: MetadataServer) -> None:
    service = MetadataService(machine.url)
    machine.recommend_rebalance()

    assert find_notice(service, early=False) is None
    assert find_notice(service, early=True) == ("rebalance recommendation at=2026-01-01T00:00Z")


def test_a_token_that_has_run_out_is_renewed(machine: MetadataServer) -> None:
    service = MetadataService(machine.url)
    find_notice(service, early=False)
    machine.expire_tokens()
    machine.interrupt()

    assert find_notice(service, early=False)


@pytest.mark.parametrize("document", ["", "no json", "[]", '{"other": 1}'])
def test_a_notice_of_another_form_is_a_notice(machine: MetadataServer, document: str) -> None:
    machine.interrupt(document)

    assert find_notice(MetadataService(machine.url), early=False) == (
        "spot notice: the machine gets action=unknown at=unknown"
    )


def test_no_proxy_is_asked(machine: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    machine.interrupt()

    assert find_notice(MetadataService(machine.url), early=False)


def test_a_watch_tells_once_and_is_done(machine: MetadataServer) -> None:
    heard: list[str] = []
    has_heard = threading.Event()

    def on_notice(notice: str) -> None:
        heard.append(notice)
        has_heard.set()

    with SpotWatch(machine.url, on_notice, early=False, poll_s=0.01):
        machine.interrupt()
        assert has_heard.wait(60)

    assert len(heard) == 1


def test_a_service_that_does_not_answer_is_said_once_and_asked_again(
    machine: MetadataServer, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Semaphore(0)
    watch = SpotWatch("http://127.0.0.1:9", lambda notice: None, early=False, poll_s=0.01)
    wait = watch._closing.wait

    def count_and_wait(timeout: float) -> bool:
        asked.release()
        return wait(timeout)

    watch._closing.wait = count_and_wait  # type: ignore[assignment, method-assign]
    with watch:
        assert all(asked.acquire(timeout=60) for _ in range(3))

    assert len([one for one in caplog.records if "no answer" in one.message]) == 1


def test_a_notice_drains_as_the_first_signal_does_and_a_signal_after_it_ends_nothing(
    machine: MetadataServer,
) -> None:
    ended: list[int] = []
    settings = Settings(spot_notice="aws", spot_notice_url=machine.url)
    machine.interrupt()
    with StopSignals(grace_s=60, at_once_code=76, end=ended.append) as signals:
        signals.hold()
        with spot_watched(settings, signals):
            assert signals.stop.wait(60)
            os.kill(os.getpid(), signal.SIGTERM)
        after_the_first = list(ended)
        os.kill(os.getpid(), signal.SIGTERM)

    assert after_the_first == [] and ended == [76]


def test_a_machine_that_goes_already_is_left_before_anything_is_loaded(
    machine: MetadataServer,
) -> None:
    has_ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        has_ended.set()

    machine.interrupt()
    signals = StopSignals(grace_s=60, at_once_code=76, end=end)
    with signals, spot_watched(Settings(spot_notice="aws", spot_notice_url=machine.url), signals):
        assert has_ended.wait(60)

    assert codes == [0]


def test_elsewhere_nothing_is_asked(machine: MetadataServer) -> None:
    signals = StopSignals(grace_s=60, at_once_code=76)
    with spot_watched(Settings(spot_notice_url=machine.url), signals):
        pass

    assert Settings().spot_notice == "off" and machine.asked == []


@pytest.mark.parametrize("url", ["169.254.169.254", "file:///etc/passwd", ""])
def test_the_service_is_reached_over_http(url: str) -> None:
    with pytest.raises(ValidationError, match="http"):
        Settings(spot_notice_url=url)


def test_the_command_listens_for_the_notice_from_its_start(
    machine: MetadataServer, tmp_path: Path
) -> None:
    machine.interrupt()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = subprocess.run(
            [
                *(Path(sys.executable).with_name("gristmill"), "worker", "--model", "any"),
                *("--queue", f"redis://127.0.0.1:{silent.getsockname()[1]}/0"),
                *("--store", str(tmp_path)),
            ],
            env={
                **os.environ,
                "GRISTMILL_SPOT_NOTICE": "aws",
                "GRISTMILL_SPOT_NOTICE_URL": machine.url,
            },
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )

    assert done.returncode == 0 and "spot notice" in done.stderr
