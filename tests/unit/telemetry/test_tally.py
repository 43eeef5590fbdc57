"""Metrics: the table, what is added up of them, and the page that Prometheus reads."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gristmill.metrics import METRICS, Kind, Process, find_metric, metrics_of
from gristmill.process.exposition import Exposition
from gristmill.process.health import Health, HealthServer
from gristmill.telemetry import NO_METRICS, Tally
from gristmill.telemetry.tally import MAX_SERIES

ROOT = Path(__file__).parents[3]
#: Labels whose values are names of models, Lanes and routes, or words of a closed set.
BOUNDED = {
    *("model", "lane", "route", "method", "status", "state", "kind", "reason", "finish_reason"),
    *("operation", "outcome", "task", "process", "version", "currency"),
}


def samples_of(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_names_follow_the_rules_of_prometheus() -> None:
    names = [metric.name for metric in METRICS]

    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"gristmill_[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
        assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.help.endswith(".") and metric.processes


def test_no_label_can_hold_a_tenant_a_batch_or_what_a_caller_wrote() -> None:
    assert {label for metric in METRICS for label in metric.labels} <= BOUNDED


def test_what_the_code_records_is_in_the_table_and_the_other_way_round() -> None:
    table = ROOT / "producer" / "gristmill" / "metrics"
    files = [*ROOT.glob("producer/gristmill/**/*.py"), *ROOT.glob("worker/**/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in files if table not in path.parents]
    call = re.compile(r'(?:add|observe|put)\(\s*(?:control,\s*)?"(gristmill_[a-z_]+)"')
    found = {name for text in texts for name in call.findall(text)}

    assert found == {metric.name for metric in METRICS}


def test_what_is_recorded_is_told_in_the_form_that_prometheus_reads() -> None:
    tally = Tally(Process.WORKER)
    tally.add("gristmill_tokens_total", ("m", "generated"), by=3)
    tally.add("gristmill_tokens_total", ("m", "generated"))
    tally.put("gristmill_leases", ("m",), value=2)
    tally.observe("gristmill_step_seconds", ("m",), 0.001)
    tally.observe("gristmill_step_seconds", ("m",), 0.01, 0.02, 99.0)

    content_type, page = Exposition(tally).page("")
    found = samples_of(page)

    assert content_type.startswith("text/plain")
    assert found["gristmill_tokens_total", (("kind", "generated"), ("model", "m"))] == 4
    assert found["gristmill_leases", (("model", "m"),)] == 2
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "gristmill_step_seconds_bucket"
    }
    assert (buckets["0.001"], buckets["0.01"], buckets["0.025"]) == (1, 2, 3)
    assert (buckets["60.0"], buckets["+Inf"]) == (3, 4)  # a bound belongs to its bucket
    assert found["gristmill_step_seconds_sum", (("model", "m"),)] == pytest.approx(99.031)
    assert ("process_resident_memory_bytes", ()) in found


def test_openmetrics_is_told_to_who_asks_for_it() -> None:
    tally = Tally(Process.WORKER)
    tally.add("gristmill_preemptions_total", ("m",))

    content_type, page = Exposition(tally).page("application/openmetrics-text; version=1.0.0")

    assert content_type.startswith("application/openmetrics-text")
    assert b"# EOF" in page and b"gristmill_preemptions_total" in page


def test_an_unknown_name_or_wrong_labels_are_a_fault() -> None:
    tally = Tally(Process.API)

    with pytest.raises(KeyError):
        tally.add("gristmill_preemptions_total", ("m",))  # a worker's
    with pytest.raises(AssertionError, match="has the labels"):
        tally.add("gristmill_api_requests_total", ("GET",))


def test_labels_that_never_end_do_not_fill_the_memory() -> None:
    tally = Tally(Process.WORKER)
    for n in range(MAX_SERIES + 50):
        tally.add("gristmill_preemptions_total", (f"m{n}",))
        tally.observe("gristmill_step_rows", (f"m{n}",), 1)

    counts = {series.metric.name: len(series.values) for series in tally.look()}

    assert counts["gristmill_preemptions_total"] == counts["gristmill_step_rows"] == MAX_SERIES


def test_gauges_are_read_when_somebody_looks_and_forgotten_when_they_are_gone() -> None:
    tally = Tally(Process.CONTROL)
    numbers = iter([3.0, 1.0])

    def read() -> None:
        tally.forget("gristmill_batches")
        tally.put("gristmill_batches", (f"status{next(numbers, 0.0)}",), value=1)

    tally.on_look(read)
    looks = [
        next(set(s.values) for s in tally.look() if s.metric.name == "gristmill_batches")
        for _ in range(2)
    ]

    assert looks == [{("status3.0",)}, {("status1.0",)}]


def test_nothing_is_recorded_where_nobody_asked() -> None:
    NO_METRICS.add("gristmill_nonsense")
    NO_METRICS.on_look(lambda: 1 / 0)

    assert not NO_METRICS.is_on


def test_each_process_tells_what_is_its_own() -> None:
    api = {metric.name for metric in metrics_of(Process.API)}

    assert find_metric("gristmill_api_requests_total").processes == (Process.API,)
    assert "gristmill_api_requests_total" in api and "gristmill_leases" not in api
    assert "gristmill_build_info" in api


@pytest.fixture
def url() -> Iterator[str]:
    tally = Tally(Process.WORKER)
    tally.add("gristmill_preemptions_total", ("m",))
    with HealthServer(
        ("127.0.0.1", 0),
        lambda: Health(live=True, ready=True, state="running"),
        Exposition(tally).page,
    ) as server:
        yield server.url


def test_metrics_are_beside_health(url: str) -> None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        page = response.read()
    with urllib.request.urlopen(f"{url}/readyz", timeout=30) as response:
        ready = response.status

    assert samples_of(page)["gristmill_preemptions_total", (("model", "m"),)] == 1
    assert ready == 200
