"""Gristmill as it is installed in three ways, each with the official client for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from commands import Commands, Running
from local_run import make_model_folder
from nursery import Nursery
from openai import OpenAI
from openai.types import Batch
from pipeline import read_lines
from ports import free_port
from postgresql import PostgresqlProcess
from redis_server import RedisProcess
from sqlalchemy import create_engine, text

ENDED = {"completed", "failed", "expired", "cancelled"}
_PATIENCE_S = 600.0
_QUICK = {
    "GRISTMILL_KEY_PEPPER": "a pepper of the tests",
    "GRISTMILL_DEVICE": "cpu",
    "GRISTMILL_NUM_THREADS": "1",
    "GRISTMILL_SHARD_MAX_JOBS": "4",
    "GRISTMILL_FLUSH_INTERVAL_S": "0.1",
    "GRISTMILL_QUIET_FLUSH_INTERVAL_S": "0.1",
    "GRISTMILL_LEASE_S": "4",
    "GRISTMILL_RESEND_AFTER_S": "3",
    "GRISTMILL_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.1/32",
}


def wait_for(what: str, is_so: Callable[[], Any]) -> Any:
    """What `is_so` returns, as soon as it is true."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < give_up_at, f"in vain: {what}"
        time.sleep(0.05)
    return found


@dataclass
class Installation:
    """A running service. Rows are of two sorts: short ones, and such that take long."""

    commands: Commands
    #: A tenant's client.
    client: OpenAI
    #: What the lines of a batch call the model.
    model: str
    #: As SQLAlchemy takes it.
    ledger_url: str

    @property
    def is_real(self) -> bool:
        return self.commands.nursery is None

    def row(
        self, custom_id: str, *, is_long: bool = False, is_endless: bool = False
    ) -> dict[str, Any]:
        """A long row of a fake Engine does not end until `let_long_rows_end`.

        An endless one ends only with its batch.
        """
        if self.is_real:
            return real_row(custom_id, self.model, is_long=is_long, is_endless=is_endless)
        prompt = f"{'!hold' if is_long or is_endless else 'Say'} {custom_id}"
        return completion(custom_id, model=self.model, prompt=prompt, max_tokens=20, seed=7)

    def create(self, rows: Iterable[dict[str, Any]] | bytes) -> Batch:
        body = rows if isinstance(rows, bytes) else as_file(rows)
        file = self.client.files.create(file=("in.jsonl", body), purpose="batch")
        return self.client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )

    def wait(
        self, batch: Batch, until: Callable[[Batch], Any] = lambda batch: batch.status in ENDED
    ) -> Batch:
        """The batch as soon as it is so."""

        def look() -> Batch | None:
            found = self.client.batches.retrieve(batch.id)
            assert found.status not in ENDED or until(found), found
            return found if until(found) else None

        found: Batch = wait_for(f"the end of {batch.id}", look)
        return found

    def let_time_run_out(self, batch: Batch) -> None:
        """Its completion window ends now. (A short window may end before the file is read.)"""
        statement = text("UPDATE batches SET expires_at = :now WHERE id = :id")
        engine = create_engine(self.ledger_url)
        with engine.begin() as connection:
            connection.execute(statement, {"now": int(time.time()), "id": batch.id})
        engine.dispose()

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a result file; none where there is no file."""
        return [] if file_id is None else read_lines(self.client.files.content(file_id).content)

    def let_long_rows_end(self) -> None:
        self.commands.gate.unlink()

    def hold_long_rows(self) -> None:
        self.commands.gate.touch()


@dataclass
class Fleet(Installation):
    """API, control and worker apart; what they share can be taken away and given back."""

    api: list[str] = field(default_factory=list)
    control: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    postgresql: PostgresqlProcess | None = None
    redis: RedisProcess | None = None
    #: By what they are: `api`, `control`, `worker`.
    running: dict[str, list[Running]] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        """One more process of each name."""
        for name in names:
            running = self.commands.start(*getattr(self, name))
            self.running.setdefault(name, []).append(running)

    def kill(self, name: str) -> None:
        """All processes of a name."""
        for running in self.running.pop(name):
            running.kill()

    def stop(self) -> list[int]:
        """End all as a supervisor does; their exit codes."""
        return [running.stop() for all_of in self.running.values() for running in all_of]


def real_row(
    custom_id: str, model: str, *, is_long: bool = False, is_endless: bool = False
) -> dict[str, Any]:
    """A long row takes a small model some seconds, an endless one minutes."""
    return completion(
        custom_id,
        model=model,
        prompt=f"Once upon a time, in the house of {custom_id},",
        max_tokens=4000 if is_endless else 250 if is_long else 12,
        ignore_eos=is_long or is_endless,
        temperature=0,
    )


def completion(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def as_file(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


@contextmanager
def commands_in(folder: Path, nursery: Nursery | None) -> Iterator[Commands]:
    """For processes that end with the block."""
    environ = dict(_QUICK)
    if nursery is not None:
        environ["GRISTMILL_CACHE_DIR"] = str(folder / "cache")
    (folder / "gate").touch()
    commands = Commands(folder, environ, nursery)
    try:
        yield commands
    finally:
        commands.close()


def start_embedded(commands: Commands) -> Installation:
    """`gristmill up`, with the key of its first start."""
    model, data = _model(commands), commands.folder / "data"
    up = commands.start("up", "--model", model, "--port", "0", "--data-dir", str(data))
    url, key = up.told(r"at (http://\S+/v1)$"), up.told(r"^(gm_\w+)$")
    client = OpenAI(base_url=url, api_key=key, max_retries=8)
    return Installation(commands, client, Path(model).name, f"sqlite:///{data}/service.sqlite")


def start_fleet(
    commands: Commands,
    *,
    postgresql: PostgresqlProcess,
    queue_url: str,
    broker_url: str,
    store_url: str,
    redis: RedisProcess | None = None,
    num_controls: int = 2,
) -> Fleet:
    """API, worker and control processes; each of these has a Celery worker and a beat."""
    ledger = ("--ledger", postgresql.url)
    store = ("--store", store_url)
    port = free_port()
    model = _model(commands)
    made = commands.start("keys", "create", *ledger, "--tenant", f"tenant-{uuid4().hex[:8]}")
    code = made.child.wait(60)
    made.is_over = True
    assert code == 0, made.err.read_text()
    fleet = Fleet(
        commands,
        OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key=made.out.read_text().strip(),
            max_retries=12,
        ),
        Path(model).name,
        postgresql.url.replace("postgresql:", "postgresql+psycopg:"),
        api=["api", "--port", str(port), *ledger, *store],
        control=[
            *("control", "--queue", queue_url, "--broker", broker_url, "--model", model),
            *(*ledger, *store),
        ],
        worker=["worker", "--queue", queue_url, "--model", model, *store],
        postgresql=postgresql,
        redis=redis,
    )
    fleet.start("api", *["control"] * num_controls, "worker")
    return fleet


def _model(commands: Commands) -> str:
    if commands.nursery is None:
        return "smollm2-135m"
    return str(make_model_folder(commands.folder / "M"))
