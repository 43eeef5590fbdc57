"""Dispatch and budgets on PostgreSQL: the same statements, and dispatchers really at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from mill import Mill, jain_index
from pipeline import Bench, fast_folder
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process
from sqlalchemy import create_engine, make_url, text

from gristmill.control.dispatch import dispatch
from gristmill.ledger.open import open_ledger
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.queues.base import BULK_LANE
from gristmill.settings import Settings
from gristmill.wire import decode_pointer


@pytest.fixture
def mill(postgresql: str) -> Iterator[Mill]:
    server = make_url(postgresql).set(drivername="postgresql+psycopg")
    database = f"mill_{uuid4().hex}"
    with create_engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"CREATE DATABASE {database}"))
    url = server.set(database=database, drivername="postgresql")
    with fast_folder() as folder:
        settings = Settings(shard_max_jobs=4, shard_max_tokens=2000, dispatch_window_shards=2)
        bench = Bench(folder, settings=settings)
        bench.ledger.close()
        bench.ledger = open_ledger(url.render_as_string(hide_password=False))
        yield Mill(bench)
        bench.ledger.close()


def test_shares_deadlines_and_budgets_hold_on_postgresql(mill: Mill) -> None:
    mill.submit("large", "large-0", num_jobs=400, due_in_s=86400)
    mill.run(10)
    mill.submit("small", "small-0", num_jobs=200, due_in_s=86400)
    mill.submit("capped", "capped-0", num_jobs=40, max_total_tokens=3000)
    before = mill.finished.copy()
    mill.run(40)
    since = mill.finished - before
    mill.submit("small", "soon", num_jobs=60, due_in_s=50)
    mill.run(50)

    assert jain_index([since["large"], since["small"]]) >= 0.95
    assert mill.batch("capped", "capped-0").freeze_reason is FreezeReason.BUDGET
    assert mill.batch("small", "soon").status is BatchStatus.COMPLETED


def test_dispatchers_at_once_send_each_shard_once(mill: Mill) -> None:
    for tenant in "abcd":
        mill.submit(tenant, f"{tenant}-0", num_jobs=32)
    found: list[tuple[str, int]] = []
    give_up_at = time.monotonic() + 60

    def send() -> None:
        while len(found) < 32 and time.monotonic() < give_up_at:
            dispatch(mill.bench.control)

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send) for _ in range(4)]
        while len(found) < 32 and time.monotonic() < give_up_at:
            for lease in mill.bench.queue.receive(BULK_LANE, 99, 0.01):
                pointer = decode_pointer(lease.body)
                found.append((pointer.batch_id, pointer.n))
                mill.bench.queue.ack(lease)
    for future in sending:
        future.result()

    assert len(found) == len(set(found)) == 32
    assert not mill.bench.queue.receive(BULK_LANE, 99, 0)
