"""The commands that speak to a service, and the examples, against one `gristmill up`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_up import Up, folder_with_model, wait_for
from typer.testing import CliRunner, Result

from gristmill.cli import app

EXAMPLES = Path(__file__).parents[2] / "producer/examples"
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def service() -> Iterator[dict[str, str]]:
    """The variables with which a command finds the service."""
    with folder_with_model() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_WEBHOOK_ALLOWED_NETWORKS", "127.0.0.0/8")
        up = Up(folder)
        yield {
            "GRISTMILL_BASE_URL": f"{up.url()}/v1",
            "GRISTMILL_API_KEY": up.first_key(),
        }
        up.stop(signal.SIGTERM)


@pytest.fixture
def run(service: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the command line in an empty folder, as of somebody with a key."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("GRISTMILL_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    for name, value in service.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRISTMILL_CONFIG", str(tmp_path / "config.toml"))

    def call(*arguments: str, code: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=input)
        assert result.exit_code == code, (result.stdout, result.stderr)
        return result

    return call


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def write_rows(path: Path, count: int = 3) -> None:
    path.write_text("prompt,label\n" + "".join(f"Say {i},{i}\n" for i in range(count)))


SUBMIT = ("submit", "in.csv", "--model", "M", "-p", "max_tokens=5")


def test_a_data_set_goes_in_and_comes_out_beside_its_rows(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.csv")

    done = run(*SUBMIT, "-o", "out.csv", "--join")

    (batch_id, *facts) = done.stdout.splitlines()
    assert batch_id.startswith("batch_") and "rows    3: 3 answered, 0 failed" in facts
    header, first, *_ = (tmp_path / "out.csv").read_text().splitlines()
    assert header.startswith("prompt,label,answer") and first.startswith("Say 0,0,")
    assert "3 rows in out.csv" in done.stderr and "completed: 3/3 rows" in done.stderr


def test_a_batch_is_followed_and_its_rows_are_taken(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.csv", 5)
    options = ("--max-rows-per-batch", "3", "--metadata", "k=v", "--window", "1h")
    ids = run(*SUBMIT, *options, "-q").stdout.split()
    assert len(ids) == 2

    assert run("wait", *ids, "--timeout", "60s", "-q").stdout == "completed\n"
    told = document(run("status", *ids, "--json"))
    lines = [json.loads(line) for line in run("results", *ids).stdout.splitlines()]
    came = [json.loads(line) for line in run("results", *ids, "--as-they-come").stdout.splitlines()]
    rest = run("results", *ids, "--as-they-come", "--after", came[1]["cursor"]).stdout
    watched = run("watch", *ids, "--interval", "50ms").stdout
    run("results", *ids, "-o", "out.jsonl")

    assert told["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    assert told["batches"][0]["metadata"]["k"] == "v"
    assert [line["custom_id"] for line in lines] == [f"row-{i}" for i in range(1, 6)]
    assert len(came) == 5 and len(rest.splitlines()) == 3
    assert "100.0%" in watched and "TTFT" in watched
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 5


def test_exit_codes_say_how_a_batch_ended(run: Run, tmp_path: Path) -> None:
    lines = [
        {"custom_id": f"q{i}", "method": "POST", "url": "/v1/completions", "body": body}
        for i, body in enumerate(
            ({"model": "M", "prompt": "x", "max_tokens": 2}, {"model": "M", "prompt": "x", "n": -1})
        )
    ]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    some = run("submit", "in.jsonl", "--wait", "-q", code=4).stdout.strip()
    again = run("retry", some).stdout.strip()
    (tmp_path / "bad.jsonl").write_text("{}\n")
    file_id = document(run("files", "create", "bad.jsonl", "--json"))["id"]
    bad = run("batches", "create", file_id, "--endpoint", "/v1/completions", "-q").stdout.strip()

    assert "line 1" in run("wait", bad, code=3).stderr
    run("wait", again, code=4)
    run("results", bad, code=3)
    assert "is no batch" in run("status", "batch_x", code=1).stderr
    assert "no id" in run("status", "a/b", code=2).stderr
    assert "nothing to cancel" in run("cancel", some, "--yes", code=2).stderr
    assert "--yes" in run("cancel", some, code=2).stderr


def test_a_batch_is_stopped_and_forgotten(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.csv", 2000)
    many = ("submit", "in.csv", "--model", "M", "-p", "max_tokens=400")
    batch_id = run(*many, "-q").stdout.strip()

    run("cancel", batch_id, "--yes", "--json")
    run("wait", batch_id, code=3)
    assert run("batches", "delete", batch_id, "--yes").stdout.strip() == batch_id


def test_what_it_would_take_is_told(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.csv")
    recipe = ("--model", "M", "-t", "Q: {label}", "--endpoint", "/v1/completions")

    told = run("estimate", "in.csv", *recipe).stdout
    made = document(run("estimate", "in.csv", *recipe, "--json"))

    assert "prompt  12 tokens" in told and made["input_tokens"] == 12
    (tmp_path / "t.txt").write_text("{nowhere}")
    refused = run("estimate", "in.csv", "--model", "M", "-t", "@t.txt", code=2)
    assert "Row 1" in refused.stderr and "'nowhere'" in refused.stderr


def test_objects_are_listed_and_shown_in_each_shape(run: Run, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.csv")
    batch_id = run(*SUBMIT, "--wait", "-q").stdout.strip()
    (tmp_path / "x.jsonl").write_text("{}\n")
    file_id = run("files", "create", "x.jsonl", "-q").stdout.strip()

    table = run("batches", "list", "--format", "table", "--limit", "1").stdout.splitlines()
    assert table[0].split() == ["id", "status", "rows", "answered", "failed", "model", "created"]
    assert table[1].startswith(f"{batch_id}  completed") and len(table) == 2
    piped = run("submit", "-", "--model", "M", "-q", input='{"prompt": "x"}\n').stdout.strip()
    assert {batch_id, piped} <= {*run("batches", "list", "-q", "--all").stdout.split()}
    newest, *older = run("batches", "list", "-q", "--all").stdout.split()
    assert newest == piped and run("batches", "ls", "-q", "--after", newest).stdout.split() == older
    assert document(run("batches", "get", batch_id))["id"] == batch_id
    assert document(run("batches", "list", "--json"))["object"] == "list"
    assert run("batches", "results", batch_id).stdout.count("\n") == 3
    assert "status" in run("batches", "get", batch_id, "--format", "table").stdout
    assert document(run("files", "get", file_id))["bytes"] == 3
    assert file_id in run("files", "list", "-q").stdout
    assert run("files", "download", file_id).stdout == "{}\n"
    run("files", "download", file_id, "-o", "copy.jsonl")
    assert (tmp_path / "copy.jsonl").read_text() == "{}\n"
    assert run("files", "delete", file_id, "--yes").stdout.strip() == file_id
    assert run("models", "ls", "-q").stdout == "M\n"
    heads, model = run("models", "list", "--format", "table").stdout.splitlines()
    assert heads.split()[-9:] == ["en", "de", "fr", "es", "ru", "ar", "hi", "zh", "ja"]
    assert model.split()[:3] == ["M", "512", "5.7"]  # its tokens are bytes
    assert document(run("models", "get", "M"))["id"] == "M"


def test_webhook_endpoints_are_managed(run: Run) -> None:
    made = document(run("webhooks", "create", "http://127.0.0.1:9/x", "--json"))

    assert made["signing_secret"].startswith("whsec_")
    assert made["id"] in run("webhooks", "list", "-q").stdout
    assert document(run("webhooks", "get", made["id"]))["url"] == "http://127.0.0.1:9/x"
    assert "did not answer" in run("webhooks", "test", made["id"], code=2).stderr
    run("webhooks", "delete", made["id"], "--yes")


def test_a_login_is_kept_for_commands_and_for_the_client(
    run: Run, service: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gristmill import Client

    key, path = service["GRISTMILL_API_KEY"], tmp_path / "config.toml"
    done = run("login", "-", "--profile", "mill", input=f"{key}\n")
    monkeypatch.delenv("GRISTMILL_API_KEY")
    monkeypatch.delenv("GRISTMILL_BASE_URL")
    shown = run("config", "show", "--profile", "mill").stdout

    assert "1 models are served" in done.stderr and key not in done.output + shown
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.search(rf"^api_key +{key[:6]}….. +{re.escape(str(path))}$", shown, re.MULTILINE)
    assert "GRISTMILL_LEASE_S" in run("config", "show", "--json").stdout
    with Client(profile="mill") as client:
        assert [model.id for model in client.models.list()] == ["M"]
    assert run("models", "list", "-q", "--profile", "mill").stdout == "M\n"
    assert "no profile 'other'" in run("models", "list", "--profile", "other", code=2).stderr
    assert "No API key" in run("models", "list", code=5).stderr


def test_a_key_that_is_refused_ends_in_5_and_is_not_kept(run: Run, tmp_path: Path) -> None:
    assert "Incorrect API key" in run("login", "-", input="gm_wrong\n", code=5).stderr
    assert not (tmp_path / "config.toml").exists()
    assert "can be seen" in run("login", "gm_key", code=2).stderr


def test_the_doctor_says_what_is_well_and_what_is_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_worker(run)
    store = f"--store={tmp_path}/store"
    well = document(run("doctor", store, f"--ledger={tmp_path}/l.sqlite", "--json"))
    assert {one["name"]: one["state"] for one in well}.items() >= {
        "gristmill": "ok",
        "service": "ok",
        "key": "ok",
        "models": "ok",
        "workers": "ok",
        "store": "ok",
        "ledger": "ok",
    }.items()

    monkeypatch.setenv("GRISTMILL_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("GRISTMILL_LEASE_S", "soon")
    ill = run("doctor", "--store=gs://x", "--ledger=x://y", code=1).stdout
    assert "BAD  ledger" in ill and "BAD  store" in ill
    assert "BAD  service" in ill and "gristmill up" in ill
    assert "BAD  settings" in ill and "GRISTMILL_LEASE_S" in ill


def ready_worker(run: Run) -> Any:
    """That of the service, as soon as it has announced itself."""

    def find() -> Any:
        (worker, *_) = document(run("workers", "--json"))["data"] or [{}]
        return worker if worker.get("state") == "ready" else None

    return wait_for(find)


def test_workers_are_shown_with_what_they_can_and_do(run: Run) -> None:
    worker = ready_worker(run)
    header, line = run("workers", "--format", "table").stdout.splitlines()

    assert (worker["state"], worker["model"], worker["lanes"][1:]) == ("ready", "M", ["bulk"])
    assert header.split()[:4] == ["worker", "state", "seen", "model"]
    assert line.split()[:2] == [worker["id"], "ready"] and line.endswith(",bulk")
    assert run("workers", "-q", "--all").stdout.split() == [worker["id"]]


def test_calls_are_told_on_stderr_without_the_key(service: dict[str, str]) -> None:
    import logging

    caught: list[str] = []

    class Catch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            caught.append(record.getMessage())

    log, handler = logging.getLogger("gristmill.client"), Catch()
    log.addHandler(handler)
    try:
        CliRunner(env=service).invoke(app, ["-vv", "models", "list"])
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)

    assert caught == [f"call method=GET url={service['GRISTMILL_BASE_URL']}/models try=1"]


def test_ctrl_c_ends_the_waiting_and_says_how_to_go_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_rows(tmp_path / "in.csv")
    batch_id = run(*SUBMIT, "-q").stdout.strip()
    with monkeypatch.context() as patch:
        patch.setattr("gristmill.client.handle.BatchHandle.wait", interrupted)

        assert f"gristmill wait {batch_id}" in run("wait", batch_id, code=130).stderr
    run("wait", batch_id)


@pytest.mark.parametrize("name", ["bulk_jobs", "webhook_receiver"])
def test_an_example_runs_as_it_stands(service: dict[str, str], tmp_path: Path, name: str) -> None:
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")},
        **service,
        "MODEL": "M",
        "ENDPOINT": "/v1/completions",
        "PATIENCE_S": "60",
        "GRISTMILL_CONFIG": str(tmp_path / "none.toml"),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    expected = {
        "bulk_jobs": ["3 rows, ", "completed 3 answered, 0 failed", "id,stars,text,answer"],
        "webhook_receiver": [" completed", "row-3 "],
    }
    assert [word for word in expected[name] if word not in done.stdout] == []
