"""The two terminals of producer/examples/takeover.md, command for command, on a tiny model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aws_server import running_aws
from gristmill_process import COMMAND, chat_line, read_lines
from redis_server import RedisProcess

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "producer/examples/takeover.md").read_text(encoding="utf-8")
#: Long rows, so that a worker that has stored three Segments is in the middle of them.
NUM_ROWS, NUM_TOKENS = 96, 300
PATIENCE_S = 120.0


def commands_of(text: str) -> list[list[str]]:
    """The commands of each block."""
    blocks = re.findall(r"^```\n(.*?)^```", text, re.M | re.S)
    return [re.findall(r"^\$ (.*)$", block, re.M) for block in blocks]


def wait_for(what: str, is_so: Callable[[], Any], said: Callable[[], str]) -> Any:
    give_up_at = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < give_up_at, f"in vain: {what}\n{said()}"
        time.sleep(0.02)
    return found


@dataclass
class Terminal:
    """A shell that is typed into, and what it shows."""

    folder: Path
    name: str
    environment: dict[str, str]
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self._log = self.folder / f"{self.name}.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                ["bash"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def shown(self) -> str:
        return self._log.read_text()

    def type(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.writelines(f"{line}\n" for line in lines)
        self.process.stdin.flush()

    def wait_for(self, pattern: str) -> re.Match[str]:
        found: re.Match[str] = wait_for(
            pattern, lambda: re.search(pattern, self.shown), lambda: self.shown
        )
        return found

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def test_a_worker_killed_in_the_middle_of_a_batch_is_replaced_as_shown(
    tiny_model: Path, tmp_path: Path
) -> None:
    lines = [
        chat_line(f"r{idx}", f"Count to {idx}.", max_tokens=NUM_TOKENS, ignore_eos=True)
        for idx in range(NUM_ROWS)
    ]
    (tmp_path / "producer/examples").mkdir(parents=True)
    requests = tmp_path / "producer/examples/requests.jsonl"
    requests.write_text("".join(f"{line}\n" for line in map(json.dumps, lines)))
    redis = RedisProcess("redis6").start()
    terminals: list[Terminal] = []
    try:
        with running_aws() as aws:
            text = TEXT.replace("redis://127.0.0.1:6379", f"redis://127.0.0.1:{redis.port}")
            text = text.replace("http://127.0.0.1:9000", aws.url)
            text = text.replace("--model smollm2-135m", f"--model {tiny_model}")
            # A tiny model would be done before a second is over.
            text = text.replace("--flush-interval 1s", "--flush-interval 20ms")
            servers, first, second, _ = commands_of(text)
            environment = {
                **{k: v for k, v in os.environ.items() if k[:9] != "GRISTMILL"},
                "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}",
                "GRISTMILL_CACHE_DIR": str(tiny_model.with_name("cache")),
                "GRISTMILL_LOG_FORMAT": "text",  # as on a terminal
                "GRISTMILL_NUM_THREADS": "1",
            }
            terminals += [Terminal(tmp_path, name, environment) for name in ("run", "worker")]
            run, worker = terminals
            run.type(*servers[2:], *first, "echo exit code $?")
            *before, kill, again = second
            # A quick machine would be done before the test looks: it holds still in the middle.
            worker.type("export GRISTMILL_CRASH_POINT=stored=freeze:3", *before)
            worker.wait_for(r"attempt began .* jobs=96 finished_before=0 ")
            bucket = aws.client("s3")

            def num_segments() -> int:
                found = bucket.list_objects_v2(Bucket="mill").get("Contents", ())
                return sum("/segments/" in entry["Key"] for entry in found)

            wait_for("tokens in the store", lambda: num_segments() >= 3, lambda: worker.shown)
            assert "attempt over" not in worker.shown, "killed in the middle"
            worker.type(kill, "unset GRISTMILL_CRASH_POINT", again)
            run.wait_for(r"exit code 0")
            worker.wait_for(r"attempt over reason=done")
    finally:
        for terminal in terminals:
            terminal.close()
        redis.remove()

    assert re.search(rf"rows +{NUM_ROWS}: {NUM_ROWS} answered, 0 failed", run.shown)
    rows = read_lines(tmp_path / "out.jsonl")
    assert [row["custom_id"] for row in rows] == [f"r{idx}" for idx in range(NUM_ROWS)]
    bodies = [row["response"]["body"] for row in rows]
    assert {body["usage"]["completion_tokens"] for body in bodies} == {NUM_TOKENS}
    assert {body["gristmill"]["attempt_count"] for body in bodies} <= {1, 2}
    began = re.findall(r"attempt began .* tokens_before=(\d+) ", worker.shown)
    assert len(began) == 2 and int(began[0]) == 0 < int(began[1]), "it goes on where the first was"


def test_the_text_shows_what_is_run() -> None:
    servers, first, second, _ = commands_of(TEXT)

    assert [line.split()[0] for line in servers] == [
        "redis-server",
        "moto_server",
        "export",
        "python",
    ]
    assert first[-1].startswith("gristmill run producer/examples/requests.jsonl ")
    assert "kill -9 $!" in second
    assert second[-1].startswith("gristmill worker ")
