"""`gristmill api`, `gristmill control` and a worker, apart, on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import openai
import pytest
from fake_engine import FakeEngine
from forked import Forked
from house import as_file, custom_ids, make_lines
from local_run import make_model_folder
from openai import OpenAI
from pipeline import fast_folder, read_lines, worker_config
from ports import free_port
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process
from redis_server import shared_server
from test_up import NURSERY, gristmill, wait_for

from gristmill.models import find_model
from gristmill.queues.open import open_queue
from gristmill.settings import Settings
from gristmill.stores.open import open_store
from gristmill_worker.worker import Worker

ENVIRON = {"GRISTMILL_KEY_PEPPER": "a pepper of the tests", "GRISTMILL_DEVICE": "cpu"}


@dataclass
class Fleet:
    folder: Path
    ledger_url: str
    queue_url: str
    port: int

    def start(self, *arguments: str) -> Forked:
        where = ("--ledger", self.ledger_url, "--store", str(self.folder / "store"))
        return Forked(NURSERY, [*arguments, *where], {**os.environ, **ENVIRON})

    def start_api(self) -> Forked:
        return self.start("api", "--port", str(self.port))

    def start_control(self) -> Forked:
        model = str(self.folder / "M")
        return self.start("control", "--queue", self.queue_url, "--model", model)

    def client(self, tenant: str) -> OpenAI:
        made = gristmill(
            "keys", "create", "--ledger", self.ledger_url, "--tenant", tenant, **ENVIRON
        )
        assert re.fullmatch(r"gm_\w+\n", made.stdout), made.stderr
        url = f"http://127.0.0.1:{self.port}/v1"
        return OpenAI(base_url=url, api_key=made.stdout.strip(), max_retries=8)


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with fast_folder() as folder:
        ledger_url = f"sqlite:///{folder / 'ledger.sqlite'}"
        if request.param == "postgresql":
            ledger_url = str(request.getfixturevalue("postgresql"))
        make_model_folder(folder / "M")
        queue_url = f"{shared_server('redis6').url}?prefix=test-{uuid4().hex}"
        yield Fleet(folder, ledger_url, queue_url, free_port())


def test_a_fleet_answers_the_official_client_whoever_is_killed(fleet: Fleet) -> None:
    apis, control = [fleet.start_api()], fleet.start_control()
    client, rival = fleet.client("acme"), fleet.client("rival")
    model = find_model(str(fleet.folder / "M"), settings=Settings())
    queue, store = open_queue(fleet.queue_url, 60.0), open_store(str(fleet.folder / "store"))
    config = replace(worker_config(idle_wait_s=0.05, flush_interval_s=0.05), pin=model.pin)
    stop = threading.Event()
    worker = threading.Thread(target=Worker(FakeEngine(), queue, store, config).run, args=(stop,))
    worker.start()

    def create(key: str) -> str:
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            metadata={"z": "\u0000\u2028", "a": "1.0"},
            extra_headers={"Idempotency-Key": key},
        )
        return batch.id

    file = client.files.create(file=("in.jsonl", as_file(make_lines(12))), purpose="batch")
    with ThreadPoolExecutor(4) as pool:
        (batch_id,) = set(pool.map(create, ["once"] * 8))
    others = [create(f"key-{i}") for i in range(3)]
    apis[0].send_signal(signal.SIGKILL)
    apis[0].wait()
    apis.append(fleet.start_api())
    ended = wait_for(lambda: (b := client.batches.retrieve(batch_id)).completed_at and b)
    lines = read_lines(client.files.content(ended.output_file_id).content)
    listed = [batch.id for batch in client.batches.list(limit=1)]
    models = [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError):
        rival.batches.cancel(batch_id)
    theirs = (list(rival.batches.list()), list(rival.files.list()))
    wait_for(lambda: not list_open(client))
    deleted = client.files.delete(file.id).deleted
    stop.set()
    worker.join()
    for process in (apis[1], control):
        process.send_signal(signal.SIGTERM)
    codes = [apis[1].wait(120), control.wait(120)]
    queue.close()

    assert custom_ids(lines) == [f"row-{i}" for i in range(12)]
    assert ended.metadata == {"z": "\u0000\u2028", "a": "1.0"}
    assert listed == [*reversed(others), batch_id]
    assert models == ["M"] and theirs == ([], [])
    assert deleted and codes == [0, 0]


def list_open(client: OpenAI) -> list[str]:
    time.sleep(0.1)
    return [batch.id for batch in client.batches.list() if batch.status != "completed"]
