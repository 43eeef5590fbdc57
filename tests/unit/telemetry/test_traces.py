"""Traces: to nobody unless the environment names a collector, and then as its variables say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services"))

from collector import Collector

from gristmill.errors import UsageError
from gristmill.metrics import Process
from gristmill.process.health import Health
from gristmill.process.otel import OtelTracer, is_sampled
from gristmill.process.telemetry import ProcessTelemetry
from gristmill.telemetry import NO_TELEMETRY
from gristmill.telemetry.traces import NO_SPAN

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def read_health() -> Health:
    return Health(live=True, ready=True, state="running")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "PROTOCOL", "HEADERS"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


def test_off_means_nothing_at_all() -> None:
    made = ProcessTelemetry("worker", Process.WORKER, health="off")

    assert made.telemetry == NO_TELEMETRY
    with made.told(read_health):
        pass


def test_nothing_of_metrics_or_traces_is_imported_unless_it_is_asked_for() -> None:
    program = (
        "import sys\n"
        "from gristmill.process.telemetry import ProcessTelemetry\n"
        "from gristmill.metrics import Process\n"
        "ProcessTelemetry('worker', Process.WORKER, health='off')\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('opentelemetry',"
        " 'prometheus_client')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_traces_can_be_switched_off(
    name: str, value: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)

    assert not ProcessTelemetry("api", Process.API, health="off").telemetry.tracer.is_on


def test_spans_arrive_with_their_facts_their_failure_and_their_parent(collector: Collector) -> None:
    made = ProcessTelemetry("control", Process.CONTROL, health="off")
    tracer = made.telemetry.tracer
    with made.told(read_health):
        with tracer.start("dispatch", PARENT, facts={"shard": 3}, at=1_000.5) as outer:
            tracer.start("attempt", outer.traceparent).end(error="lease_lost")
        with (
            pytest.raises(ValueError, match="quicksilver"),
            tracer.start("finalize", PARENT) as failing,
        ):
            failing.tell(has_ended=False)
            raise ValueError("quicksilver")
    spans = {span.name: span for span in collector.spans}

    assert spans["dispatch"].parent_id == "b" * 16 and spans["dispatch"].trace_id == "a" * 32
    assert spans["dispatch"].facts == {"gristmill.shard": 3}
    assert spans["dispatch"].began_ns == 1_000_500_000_000
    assert spans["attempt"].parent_id == spans["dispatch"].span_id
    assert spans["attempt"].has_failed and spans["finalize"].has_failed
    assert spans["finalize"].facts["error.type"] == "ValueError"
    assert not spans["dispatch"].has_failed
    assert {span.service for span in collector.spans} == {"gristmill-control"}
    assert b"quicksilver" not in collector.heard  # an error may quote what a caller wrote


def test_the_name_of_the_service_is_the_environments_if_it_has_one(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    tracer = OtelTracer("worker")
    tracer.start("attempt", PARENT).end()
    tracer.close()

    assert [span.service for span in collector.spans] == ["mine"]


@pytest.mark.parametrize(
    "parent", ["", "nonsense", PARENT[:-1], PARENT[:-2] + "00", PARENT[:-2] + "zz"]
)
def test_what_nobody_samples_is_not_traced(parent: str, collector: Collector) -> None:
    tracer = OtelTracer("worker")

    assert not is_sampled(parent)
    assert tracer.start("attempt", parent) is NO_SPAN
    assert tracer.current() == ""
    tracer.close()


def test_without_the_sdk_it_is_said_how_to_get_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(UsageError, match=r"pip install 'gristmill\[traces\]'"):
        ProcessTelemetry("api", Process.API, health="off")


def test_without_prometheus_client_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    made = ProcessTelemetry("api", Process.API, health="127.0.0.1:0")

    with pytest.raises(UsageError, match="prometheus-client"), made.told(read_health):
        pass
