"""What control tells CloudWatch, from the gauges that Prometheus reads."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from aws_server import AwsServer
from aws_server import aws as aws
from botocore.exceptions import EndpointConnectionError

from gristmill.errors import UsageError
from gristmill.metrics import Process
from gristmill.process.cloudwatch import (
    CloudWatchLoop,
    ModelLoad,
    cloudwatch_client,
    cloudwatch_told,
    loads_of,
)
from gristmill.telemetry import Tally


def make_idle_tally(*models: str) -> Tally:
    """Of a Ledger that was read, and has nothing to do for these models."""
    tally = Tally(Process.CONTROL)
    tally.put("gristmill_batches", ("in_progress",), value=0.0)
    for model in models:
        tally.put("gristmill_backlog_tokens", ("bulk", model), value=0.0)
    return tally


def make_tally() -> Tally:
    tally = make_idle_tally()
    for lane, tokens in (("bulk", 100.0), ("pool-8k-1", 50.0)):
        tally.put("gristmill_backlog_tokens", (lane, "m"), value=tokens)
    tally.put("gristmill_backlog_model_seconds", ("m",), value=20.0)
    for state, count in (("loading", 1.0), ("ready", 2.0), ("draining", 4.0), ("lost", 8.0)):
        tally.put("gristmill_workers", ("m", state), value=count)
    return tally


class Recorder:
    def __init__(self) -> None:
        self.sent: list[tuple[str, list[dict[str, Any]]]] = []
        self.error: Exception | None = None

    def put_metric_data(self, *, Namespace: str, MetricData: list[dict[str, Any]]) -> None:
        if self.error:
            raise self.error
        self.sent.append((Namespace, MetricData))

    def numbers(self) -> dict[tuple[str, str], float]:
        return {
            (one["Dimensions"][0]["Value"], one["MetricName"]): one["Value"]
            for _, sent in self.sent[-1:]
            for one in sent
        }


def test_the_load_of_a_model_is_over_all_its_lanes_and_the_workers_that_take_work() -> None:
    loads = loads_of(make_tally().look(), ["idle"])

    assert loads == {"idle": ModelLoad(), "m": ModelLoad(150.0, 20.0, 3.0)}


def test_a_model_that_was_told_of_is_told_of_when_nothing_is_left() -> None:
    tally, recorder = make_tally(), Recorder()
    loop = CloudWatchLoop(recorder, "ns", tally.look)
    loop.turn()
    tally.forget("gristmill_backlog_tokens", "gristmill_backlog_model_seconds", "gristmill_workers")

    loop.turn()

    assert recorder.sent[0][0] == "ns"
    assert recorder.numbers() == {
        ("m", "BacklogTokens"): 0.0,
        ("m", "BacklogSeconds"): 0.0,
        ("m", "Workers"): 0.0,
    }


def test_names_that_no_dimension_can_have_spoil_nothing() -> None:
    recorder = Recorder()

    CloudWatchLoop(recorder, "ns", make_idle_tally("m", "模型", " ").look).turn()

    assert {model for model, _ in recorder.numbers()} == {"m"}


def test_many_models_are_told_of_in_several_requests() -> None:
    recorder = Recorder()

    CloudWatchLoop(recorder, "ns", make_idle_tally(*(f"m{n}" for n in range(700))).look).turn()

    assert [len(sent) for _, sent in recorder.sent] == [900, 900, 300]


def test_an_outage_is_said_once_and_over_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    loop = CloudWatchLoop(recorder, "ns", make_idle_tally("m").look)
    recorder.error = EndpointConnectionError(endpoint_url="http://nowhere")

    loop.turn()
    loop.turn()
    trouble = loop.trouble
    recorder.error = None
    loop.turn()

    assert "publishing to 'ns' failed" in trouble and not loop.trouble
    assert len([one for one in caplog.records if "metrics not published" in one.message]) == 1


def test_a_fault_of_ours_ends_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    loop = CloudWatchLoop(recorder, "ns", make_idle_tally("m").look)
    recorder.error = ZeroDivisionError()

    loop.turn()
    recorder.error = None
    loop.turn()

    assert "ZeroDivisionError" in caplog.text and recorder.sent


def test_while_the_ledger_is_away_nothing_is_said_which_would_end_all_workers() -> None:
    recorder = Recorder()
    loop = CloudWatchLoop(recorder, "ns", Tally(Process.CONTROL).look)

    loop.turn()

    assert "ledger is away" in loop.trouble and not recorder.sent


def test_cloudwatch_has_the_numbers_afterwards(aws: AwsServer) -> None:
    client = cloudwatch_client(f"cloudwatch://?endpoint={aws.url}")

    CloudWatchLoop(client, "mill", make_tally().look).turn()

    listed = aws.client("cloudwatch").list_metrics(Namespace="mill")["Metrics"]
    assert sorted(one["MetricName"] for one in listed) == [
        "BacklogSeconds",
        "BacklogTokens",
        "Workers",
    ]


def test_while_a_process_runs_it_publishes(aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", aws.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    has_looked = threading.Event()
    tally = make_tally()
    tally.on_look(has_looked.set)
    stop = threading.Event()

    with cloudwatch_told("while", tally.look, stop=stop):
        assert has_looked.wait(60)
        stop.set()

    assert aws.client("cloudwatch").list_metrics(Namespace="while")["Metrics"]


def test_without_a_region_it_says_so(aws: AwsServer) -> None:
    with pytest.raises(UsageError, match="AWS_DEFAULT_REGION"):
        cloudwatch_client()
