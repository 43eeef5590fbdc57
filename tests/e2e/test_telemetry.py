"""What a whole `gristmill up` tells of itself: metrics, one connected trace, a log without prompts.

One process on a tiny real model, which answers three batches, tells two webhooks of them, and is
stopped by SIGTERM.
"""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import openai
import pytest
from collector import Collector
from forked import Forked
from gristmill_process import chat_line
from openai import OpenAI
from openai.types import Batch
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from redis_server import shared_server
from webhook_receiver import Receiver, Reply

from gristmill.metrics import METRICS

NURSERY = Path(__file__).with_name("engine_nursery.py")
#: No prompt, no custom_id: what must be in no line of the log, and in no span.
SECRET = "quicksilver"
CALLER = f"00-{'c' * 32}-{'d' * 16}-01"
ENVIRON = {
    "PATH": "/usr/bin:/bin",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "GRISTMILL_DEVICE": "cpu",
    "GRISTMILL_NUM_THREADS": "1",
}
FLEET = {"GRISTMILL_KEY_PEPPER": "a pepper of the tests"}
#: What only goes up when something breaks; tests of the Worker and of the control side break it.
OF_FAULTS = {
    *("gristmill_preemptions_total", "gristmill_lease_losses_total", "gristmill_retries_total"),
}


@dataclass
class Told:
    """All that the process has told by its end."""

    page: str
    collector: Collector
    out: str
    err: str
    key: str
    exit_code: int
    completed: Batch
    webhook_secret: str

    @property
    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """By name: the values of the labels, in the order of their names, and the value."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.page):
            for sample in family.samples:
                labels = tuple(value for _, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
        return found

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]


def said_by(process: Forked) -> tuple[str, str]:
    """On stdout and stderr."""
    return process.out.read_text(encoding="utf-8"), process.err.read_text(encoding="utf-8")


def wait_for(process: Forked, is_so: Callable[[], Any]) -> Any:
    give_up_at = time.monotonic() + 120
    while not (found := is_so()):
        assert process.poll() is None and time.monotonic() < give_up_at, said_by(process)
        time.sleep(0.05)
    return found


def as_file(lines: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


@pytest.fixture(scope="module")
def told(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("up")
    prices = {"models": {"*": {"prompt": 1, "completion": 2}}}
    (folder / "prices.json").write_text(json.dumps(prices))
    with Collector() as collector, Receiver() as receiver:
        environ = {
            **ENVIRON,
            "GRISTMILL_CACHE_DIR": str(tiny_model.with_name("cache")),
            "GRISTMILL_PRICES": "prices.json",
            "GRISTMILL_MACHINE_PRICE_PER_HOUR": "3600",
            "GRISTMILL_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.1/32",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        words = ["up", "--model", str(tiny_model), "--served-model-name", "tiny", "--port", "0"]
        words += ["--flush-interval", "100ms"]
        process = Forked(NURSERY, words, environ, cwd=folder)
        try:
            yield watch(process, collector, receiver)
        finally:
            process.kill()
            process.wait()


def watch(process: Forked, collector: Collector, receiver: Receiver) -> Told:
    def said(pattern: str) -> Callable[[], str | None]:
        def look() -> str | None:
            found = re.search(pattern, "\n".join(said_by(process)), re.MULTILINE)
            return found and found[1]

        return look

    key = wait_for(process, said(r"^(gm_\w+)$"))
    url = wait_for(process, said(r"at (http://\S+)/v1$"))
    health = wait_for(process, said(r'"url": "(http://\S+)/readyz"')) + "/metrics"
    client = OpenAI(base_url=f"{url}/v1", api_key=key)
    receiver.answer = lambda call: Reply(500 if "broken" in call.path else 200)
    hooks = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"})
    secrets = []
    for path in ("hook", "broken"):
        target = receiver.url.replace("hook", path)
        asked = {"name": path, "url": target, "event_types": ["batch.completed"]}
        made = hooks.post("/v1/webhook_endpoints", json=asked).raise_for_status()
        secrets.append(made.json()["signing_secret"])

    def run(lines: list[dict[str, Any]], **options: Any) -> Batch:
        file = client.files.create(file=("in.jsonl", as_file(lines)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            **options,
        )
        ended = ("completed", "failed", "cancelled", "expired")
        return wait_for(  # type: ignore[no-any-return]
            process, lambda: (b := client.batches.retrieve(batch.id)).status in ended and b
        )

    shared = f"{SECRET} " * 12
    good = [
        chat_line(f"{SECRET}-{n}", f"{shared}{n}", max_tokens=6, ignore_eos=True) for n in range(20)
    ]
    bad = chat_line(f"{SECRET}-bad", shared, temperature=99)
    run([{"no": SECRET}])
    completed = run([*good, bad], extra_headers={"traceparent": CALLER})
    stranger = OpenAI(base_url=f"{url}/v1", api_key=f"gm_{SECRET}", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    httpx2.get(f"{url}/nowhere")
    receiver.wait(2)
    page = wait_for(process, lambda: page_with(health, "retried"))
    process.send_signal(signal.SIGTERM)
    exit_code = process.wait(60)
    return Told(page, collector, *said_by(process), key, exit_code, completed, secrets[0])


def page_with(url: str, word: str) -> str | None:
    with urllib.request.urlopen(url, timeout=30) as response:
        page: str = response.read().decode()
    return page if word in page else None


def test_every_metric_of_the_table_is_told_and_no_other(told: Told) -> None:
    names = {re.sub("_(bucket|sum|count)$", "", name) for name in told.samples}
    ours = {name for name in names if name.startswith("gristmill_")}
    table = {metric.name for metric in METRICS}

    assert table - ours <= OF_FAULTS
    assert ours <= table
    assert "process_resident_memory_bytes" in names


def test_what_is_told_is_what_was_done(told: Told) -> None:
    samples = told.samples
    assert told.completed.request_counts and told.completed.usage
    usage = told.completed.usage

    assert samples["gristmill_rows_total"] == {
        ("tiny", "completed"): 20.0,
        ("tiny", "failed"): 1.0,
    }
    assert samples["gristmill_tokens_total"][("generated", "tiny")] == usage.output_tokens
    computed = samples["gristmill_tokens_total"][("prompt_computed", "tiny")]
    cached = samples["gristmill_tokens_total"][("prompt_cached", "tiny")]
    assert computed + cached >= usage.input_tokens and cached > 0
    assert samples["gristmill_ttft_seconds_count"][("tiny",)] == 20
    assert samples["gristmill_itl_seconds_count"][("tiny",)] == 20
    assert samples["gristmill_batches_ended_total"] == {("completed",): 1.0, ("failed",): 1.0}
    tries = samples["gristmill_webhook_deliveries_total"]
    assert tries[("delivered",)] == 1 and tries[("retried",)] >= 1
    assert samples["gristmill_machine_cost_total"][("USD", "tiny")] > 0
    cost = (usage.input_tokens + 2 * usage.output_tokens) / 1e6
    assert samples["gristmill_cost_total"][("USD", "tiny")] == pytest.approx(cost)
    assert samples["gristmill_worker_state"] == {
        ("tiny", "draining"): 0,
        ("tiny", "loading"): 0,
        ("tiny", "ready"): 1,
    }
    requests = samples["gristmill_api_requests_total"]
    assert requests[("POST", "/v1/batches", "200")] == 2
    assert requests[("GET", "none", "404")] == 1  # whatever the path was


def test_no_label_tells_of_a_tenant_a_batch_or_a_caller(told: Told) -> None:
    ours = "\n".join(line for line in told.page.splitlines() if line.startswith("gristmill_"))

    for hidden in (SECRET, told.completed.id, "default", told.key[:8], "file-"):
        assert hidden not in ours


def test_a_batch_is_one_trace_from_the_request_to_its_rows_and_webhooks(told: Told) -> None:
    spans = [span for span in told.collector.spans if span.trace_id == "c" * 32]
    by_id = {span.span_id: span for span in spans}
    names = {span.name for span in spans}
    (request,) = [span for span in spans if span.parent_id == "d" * 16]

    assert request.name == "POST /v1/batches"
    assert {"ingest", "dispatch", "attempt", "row", "accept", "finalize", "webhook"} <= names
    for span in spans:
        assert span is request or span.parent_id in by_id, span
        assert span.began_ns <= span.ended_ns and span.service == "gristmill-up"
    parents = {span.name: by_id[span.parent_id].name for span in spans if span is not request}
    assert parents["attempt"] == "dispatch" and parents["row"] == "attempt"
    assert {parents[name] for name in ("ingest", "dispatch", "accept", "finalize", "webhook")} == {
        request.name
    }
    rows = told.collector.named("row")
    assert 0 < len(rows) <= 20 and all(row.facts["gristmill.completion_tokens"] for row in rows)
    assert SECRET.encode() not in told.collector.heard


def test_the_log_is_lines_of_json_that_say_who_did_what(told: Told) -> None:
    events = {line["event"]: line for line in told.log}

    assert told.exit_code == 0
    assert events["batch created"]["batch"].startswith("batch_")
    over = events["attempt over"]
    assert (over["reason"], over["level"]) == ("done", "info") and over["attempt"][:4] == "att-"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["time"]) for line in told.log)
    others = [line for line in told.err.splitlines() if not line.startswith("{")]
    assert len(others) <= 3, others  # what the command itself says to people


def test_no_line_of_the_log_has_a_prompt_a_custom_id_or_a_key(told: Told) -> None:
    for hidden in (SECRET, told.key, told.key.split("_")[2], told.webhook_secret[6:]):
        assert hidden not in told.err
    assert SECRET not in told.out


def test_where_the_time_of_its_rows_went_is_told_with_the_batch(told: Told) -> None:
    timings = (told.completed.model_extra or {})["timings"]

    assert timings["ttft_seconds"]["p50"] <= timings["ttft_seconds"]["p99"]
    assert set(timings["mean_row_seconds"]) == {"ledger", "queue", "worker", "prefill", "decode"}
    assert timings["mean_row_seconds"]["decode"] > 0
    assert timings["wait_seconds"]["p90"] >= 0 and timings["validating_seconds"] >= 0


def test_each_process_of_a_fleet_tells_its_own_part(tiny_model: Path, tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("api", "control", "public")}
    own = {name: ["--health", f"127.0.0.1:{ports[name]}"] for name in ("api", "control")}
    shared = ["--ledger", "ledger.sqlite", "--store", "store"]
    queue_url = f"{shared_server('redis6').url}?prefix=t-{uuid4().hex[:8]}"
    serving = ["--queue", queue_url, "--model", str(tiny_model)]
    (tmp_path / "store").mkdir()
    processes = [
        Forked(NURSERY, [*words, *shared], {**ENVIRON, **FLEET}, cwd=tmp_path)
        for words in (
            ["control", *own["control"], *serving],
            ["api", *own["api"], "--port", str(ports["public"])],
        )
    ]
    try:
        public = f"http://127.0.0.1:{ports['public']}"
        pages = {}
        for process, name, word in zip(
            processes,
            ("control", "api"),
            ('model="tiny"', "gristmill_api_requests_total"),
            strict=True,
        ):
            url = f"http://127.0.0.1:{ports[name]}/metrics"

            def look(url: str = url, word: str = word) -> str | None:
                with suppress(OSError, httpx2.TransportError):
                    httpx2.get(f"{public}/v1/models")
                    return page_with(url, word)
                return None

            pages[name] = wait_for(process, look)
        exposed = httpx2.get(f"{public}/metrics").status_code
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in processes]
    finally:
        for process in processes:
            process.kill()

    assert 'gristmill_backlog_tokens{lane="bulk",model="tiny"} 0.0' in pages["control"]
    assert 'gristmill_build_info{process="control"' in pages["control"]
    assert "gristmill_api" not in pages["control"] and "gristmill_backlog" not in pages["api"]
    assert exposed == 404  # callers of the API see nothing of it
    assert codes == [0, 0]
