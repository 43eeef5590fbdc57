"""What infra/compose.yaml starts, with the same commands and environment, as plain processes.

There is no container engine where tests run. Redis, PostgreSQL and an S3 server are real and
configured as the file says; names of hosts, ports and paths of containers stand for those of here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from aws_server import running_aws
from gristmill_process import COMMAND, chat_line
from installations import ENDED, as_file, wait_for
from openai import OpenAI
from pipeline import read_lines
from ports import free_port
from postgresql import PostgresqlProcess
from postgresql import postgresql_process as postgresql_process
from redis_server import RedisProcess

from gristmill.metrics import Process, metrics_of

sys.path.insert(0, str(Path(__file__).parents[1] / "infra"))

from places import COMPOSE, ENV, INFRA, read_compose

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
NUM_ROWS = 24
#: What is told from the first time on, or where there is a price.
LATER = {
    "gristmill_cost_per_million_tokens",
    "gristmill_cost_total",
    "gristmill_lease_losses_total",
    "gristmill_machine_cost_total",
    "gristmill_preemptions_total",
    "gristmill_retries_total",
    "gristmill_webhook_deliveries_total",
}


@dataclass
class GuardedRedis(RedisProcess):
    """With the options of a service of Compose, its password among them."""

    password: str = ""

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2, password=self.password)


def redis_of(service: dict[str, Any]) -> GuardedRedis:
    password = service["environment"]["REDIS_PASSWORD"]
    words = shlex.split(service["command"][-1].replace("$REDIS_PASSWORD", password))
    assert words[:4] == ["exec", "redis-server", "--dir", "/data"]
    return GuardedRedis("redis8", tuple(words[4:]), password=password)


@dataclass
class Stack:
    """The services of the file, with what stands for its hosts and paths."""

    services: dict[str, Any]
    folder: Path
    #: What is written there, and what is meant here.
    here: dict[str, str]
    cache: Path
    ports: dict[str, int] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def environ(self, name: str) -> dict[str, str]:
        inherited = {
            k: v for k, v in os.environ.items() if k[:9] != "GRISTMILL" and k[:4] != "AWS_"
        }
        own = {k: self._meant(v) for k, v in self.services[name]["environment"].items()}
        cache = {"GRISTMILL_CACHE_DIR": str(self.cache), "GRISTMILL_NUM_THREADS": "1"}
        return {**inherited, **cache, **own}

    def command(self, name: str) -> list[str]:
        words = [self._meant(word) for word in self.services[name]["command"]]
        for idx, word in enumerate(words):
            port = word.rpartition(":")[2]
            if port in ("8000", "8001"):
                here = self.ports[f"{name}:{port}"] = free_port()
                words[idx] = word.replace(port, str(here)).replace("0.0.0.0", "127.0.0.1")
            elif word == "0.0.0.0":
                words[idx] = "127.0.0.1"
        return [str(COMMAND), *words]

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                self.command(name), env=self.environ(name), stdout=log, stderr=log
            )

    def run(self, name: str, *words: str) -> str:
        """`docker compose run --rm NAME WORDS`; without words, the service's own command."""
        command = [str(COMMAND), *words] if words else self.command(name)
        done = subprocess.run(
            command,
            env=self.environ(name),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_healthy(self, name: str) -> bool:
        """As the image's HEALTHCHECK tells."""
        assert self.running[name].poll() is None, self.log(name)
        url = f"http://127.0.0.1:{self.ports[f'{name}:8000']}/readyz"
        check = [sys.executable, str(INFRA / "docker/healthy.py"), url]
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def stop(self, name: str) -> int:
        """As Compose does it: SIGTERM, and SIGKILL after `stop_grace_period`."""
        process = self.running.pop(name)
        process.terminate()
        return process.wait(int(self.services[name]["stop_grace_period"].removesuffix("s")))

    def _meant(self, text: str) -> str:
        for there, here in self.here.items():
            text = text.replace(there, here)
        return text


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Path,
    postgresql_process: PostgresqlProcess,
) -> Iterator[Stack]:
    services = read_compose(
        COMPOSE, env={**ENV, "MODELS_DIR": str(tiny_model.parent), "MODEL": tiny_model.name}
    )
    with ExitStack() as stack:
        aws = stack.enter_context(running_aws())
        s3 = services["s3"]
        (bucket,) = [word.partition("=")[2] for word in s3["command"] if "-bucket" in word]
        aws.client("s3").create_bucket(Bucket=bucket)
        here = {"http://s3:8333": aws.url, f"/models/{tiny_model.name}": str(tiny_model)}
        for name in ("queue", "broker"):
            server = redis_of(services[name]).start()
            stack.callback(server.remove)
            here[f"{name}:6379"] = f"127.0.0.1:{server.port}"
        with psycopg.connect(postgresql_process.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE gristmill")
        here["postgres:5432"] = f"127.0.0.1:{postgresql_process.port}"
        folder = tmp_path_factory.mktemp("stack")
        made = Stack(services, folder, here, tiny_model.with_name("cache"))
        yield made
        for name, process in made.running.items():
            process.kill()
            process.wait()
            print(f"--- {name}\n{made.log(name)}")


def test_the_services_come_up_answer_a_batch_and_go_down(stack: Stack, tiny_model: Path) -> None:
    migrated = stack.run("migrate")
    for name in ("api", "control", "worker"):
        stack.start(name)
    key = stack.run("api", "keys", "create", "--name", "first").strip()
    for name in stack.running:
        wait_for(f"{name} is healthy", lambda name=name: stack.is_healthy(name))
    client = OpenAI(
        base_url=f"http://127.0.0.1:{stack.ports['api:8000']}/v1", api_key=key, max_retries=8
    )
    rows = [chat_line(f"r{idx}", f"Count to {idx}.", max_tokens=8) for idx in range(NUM_ROWS)]
    for row in rows:
        row["body"]["model"] = tiny_model.name
    file = client.files.create(file=("in.jsonl", as_file(rows)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h"
    )
    ended = wait_for(
        "the end of the batch",
        lambda: (found := client.batches.retrieve(batch.id)).status in ENDED and found,
    )
    output = read_lines(client.files.content(ended.output_file_id).content)
    metrics = {
        name: look(stack.ports[f"{name}:{port}"])
        for name, port in (("api", 8001), ("control", 8000), ("worker", 8000))
    }
    codes = {name: stack.stop(name) for name in ("worker", "control", "api")}

    assert "schema" in migrated
    assert ended.status == "completed"
    assert [row["custom_id"] for row in output] == [f"r{idx}" for idx in range(NUM_ROWS)]
    assert codes == {"worker": 0, "control": 0, "api": 0}
    for name, text in metrics.items():
        assert f'gristmill_build_info{{process="{name}"' in text
    backlog = f'gristmill_backlog_worker_seconds{{lane="bulk",model="{tiny_model.name}"}}'
    assert backlog in metrics["control"]
    told = {name: set(re.findall(r"^# TYPE (\w+)", text, re.M)) for name, text in metrics.items()}
    for name in told:
        known = {metric.name for metric in metrics_of(Process(name))}
        assert {one for one in told[name] if one.startswith("gristmill_")} <= known
        assert known - told[name] <= LATER


def look(port: int) -> str:
    give_up_at = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = str(answer.read().decode())
        if "gristmill_build_info" in text or time.monotonic() > give_up_at:
            return text
        time.sleep(0.1)
