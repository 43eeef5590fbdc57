"""A quick look at a batch sees what the usual query sees."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from mill import Mill
from pipeline import Bench
from sqlalchemy import update

from gristmill.errors import StoreError
from gristmill.ledger import batches
from gristmill.ledger.batch import Batch
from gristmill.ledger.quick_look import QuickLook, quick_look
from gristmill.ledger.schema import batches as batches_table


def found(bench: Bench) -> QuickLook:
    look = quick_look(bench.ledger)
    assert look is not None
    return look


def plain(batch: Batch) -> dict[str, Any]:
    """Its fields, as values that can be compared."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return values | {name: values[name].to_wire() for name in ("ttft", "itl", "times")}


def test_it_is_the_same_batch_at_any_moment(bench: Bench) -> None:
    look, mill = found(bench), Mill(bench)
    mill.submit("acme", "one", num_jobs=8, metadata={"project": "é"}, max_cost=None, priority=3)
    seen = []
    for _ in range(10):
        with bench.ledger.read() as conn:
            batch = batches.get(conn, "acme", "one")
            looked = look.find("acme", "one")
        assert batch is not None and looked is not None
        assert plain(looked) == plain(batch)
        seen.append(batch.status)
        mill.run(1)

    assert len(set(seen)) > 1
    assert look.find("other", "one") is None and look.find("acme", "two") is None


def test_a_deleted_batch_is_not_there(bench: Bench) -> None:
    look = found(bench)
    bench.create()
    assert look.find("acme", bench.batch_id) is not None

    with bench.ledger.write() as conn:
        conn.execute(update(batches_table).values(deleted_at=5))

    assert look.find("acme", bench.batch_id) is None


def test_a_ledger_that_cannot_be_read_is_an_outage(bench: Bench) -> None:
    look = found(bench)
    with bench.ledger.write() as conn:
        conn.exec_driver_sql("ALTER TABLE batches RENAME TO elsewhere")

    with pytest.raises(StoreError, match="cannot be read"):
        look.find("acme", bench.batch_id)


def test_a_closed_ledger_leaves_no_file_open(bench: Bench) -> None:
    look = found(bench)
    bench.create()
    bench.ledger.close()

    assert look is not None
    assert not list(Path(bench.folder).glob("*.sqlite-wal"))
