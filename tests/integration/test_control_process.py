"""`gristmill control` in processes: on SQLite and PostgreSQL, alone and two at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from fake_engine import FakeEngine, fake_text, fake_tokens
from pipeline import (
    PIN,
    TENANT,
    Bench,
    fast_folder,
    make_job,
    make_refusal,
    make_windows,
    worker_config,
)
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process
from redis_server import free_port, shared_server

from gristmill.control.ingest import create_batch
from gristmill.errors import StoreError, UsageError
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.open import open_ledger
from gristmill.ledger.status import BatchStatus
from gristmill.queues.open import open_queue
from gristmill.stores.open import open_store
from gristmill_worker.worker import Worker

JOBS = [make_job(idx) for idx in range(9)]


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    return str(request.getfixturevalue("postgresql"))


def run_control(ledger_url: str, queue_url: str, store: Path) -> subprocess.Popen[bytes]:
    program = "import sys; from gristmill.cli import app; app(sys.argv[1:])"
    options = ["--ledger", ledger_url, "--queue", queue_url, "--store", str(store)]
    return subprocess.Popen([sys.executable, "-c", program, "control", *options])


def test_two_control_processes_bring_a_batch_to_its_end(ledger_url: str) -> None:
    queue_url = f"{shared_server('redis6').url}?prefix=test-{uuid4().hex}"
    with fast_folder() as folder:
        store = folder / "store"
        bench = Bench(folder, batch_id=f"batch_{uuid4().hex}")
        bench.ledger.close()
        bench.clock.now = time.time()
        bench.ledger = open_ledger(ledger_url)
        bench.queue, bench.store = open_queue(queue_url, 60.0), open_store(str(store))
        create_batch(
            bench.control,
            TENANT,
            bench.batch_id,
            model=PIN,
            seed="seed",
            input_fingerprint="sha",
            options={},
        )
        bench.ingest(make_windows([*JOBS[:5], make_refusal(5)], JOBS[6:]))

        controls = [run_control(ledger_url, queue_url, store) for _ in range(2)]
        worker = Worker(FakeEngine(), bench.queue, bench.store, worker_config())
        give_up_at = time.monotonic() + 60
        while bench.batch.status is not BatchStatus.COMPLETED:
            worker.leases.renew()
            worker.turn()
            assert time.monotonic() < give_up_at, bench.batch
        for control in controls:
            control.send_signal(signal.SIGTERM)
        codes = [control.wait(20) for control in controls]

        assert codes == [0, 0]
        answers = {
            line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
            for line in bench.lines("output") or []
        }
        assert answers == {
            job.rows[0].custom_id: fake_text(fake_tokens(job)) for job in JOBS[:5] + JOBS[6:]
        }
        assert [line["custom_id"] for line in bench.lines("error") or []] == ["row-5"]
        bench.ledger.close()


def test_a_ledger_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    for wrong in ("mysql://root@localhost/x", "sqlite://", "postgresql:/x"):
        with pytest.raises((UsageError, StoreError)):
            open_ledger(wrong).close()
    with pytest.raises(StoreError, match="cannot be reached"):
        open_ledger(f"postgresql://nobody@127.0.0.1:{free_port()}/nothing")


def test_a_path_and_a_url_name_the_same_ledger(tmp_path: Path) -> None:
    opened: list[Ledger] = [
        open_ledger(str(tmp_path / "a.sqlite")),
        open_ledger(f"sqlite:///{tmp_path / 'a.sqlite'}"),
    ]
    for ledger in opened:
        ledger.close()

    assert (tmp_path / "a.sqlite").exists()
