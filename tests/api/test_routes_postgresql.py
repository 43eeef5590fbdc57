"""Routing on PostgreSQL: the same statements, with a fleet of several pools."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from fleet_mill import FleetMill
from pipeline import Bench, fast_folder
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process
from sqlalchemy import create_engine, make_url, text

from gristmill.control.outlook import Outlook, Phase
from gristmill.fleet import LOST_AFTER_S
from gristmill.ledger.open import open_ledger
from gristmill.ledger.status import BatchStatus


@pytest.fixture
def mill(postgresql: str) -> Iterator[FleetMill]:
    server = make_url(postgresql).set(drivername="postgresql+psycopg")
    database = f"routes_{uuid4().hex}"
    with create_engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"CREATE DATABASE {database}"))
    url = server.set(database=database, drivername="postgresql")
    with fast_folder() as folder:
        bench = Bench(folder)
        bench.ledger.close()
        bench.ledger = open_ledger(url.render_as_string(hide_password=False))
        yield FleetMill(bench)
        bench.ledger.close()


def test_rows_go_where_they_fit_wait_for_a_machine_or_are_refused(mill: FleetMill) -> None:
    for name, limit in (("small", 512), ("medium", 2048), ("large", 8192)):
        mill.add(name, limit)
    mill.submit("one", [100, 1500, 6000] * 2)
    mill.run(12)
    mill.kill("large")
    mill.submit("two", [100, 6000, 9000])
    mill.run(int(LOST_AFTER_S) + 15, step_s=5)
    waiting = Outlook(mill.bench.ledger, mill.bench.clock).of(mill.batch("two"))
    mill.add("again", 8192)
    mill.run(10)
    mill.run(640, step_s=20)

    assert mill.batch("one").status is BatchStatus.COMPLETED and mill.batch("one").completed == 6
    assert 1500 not in mill.lengths("small") and 6000 not in mill.lengths("medium")
    assert waiting is not None and waiting.phase is Phase.NO_WORKER
    two = mill.batch("two")
    assert (two.status, two.completed, two.failed) == (BatchStatus.COMPLETED, 2, 1)


def test_shards_that_wait_for_a_machine_keep_none_of_their_class_waiting(mill: FleetMill) -> None:
    for name, limit in (("small", 512), ("medium", 6000), ("large", 8192)):
        mill.add(name, limit)
    mill.kill("large")
    mill.bench.clock.advance(LOST_AFTER_S + 1)
    mill.beat()
    mill.submit("one", [7000] * 20 + [5500])

    mill.run(4)

    assert mill.ran["medium"] == [("one", 5500)]
