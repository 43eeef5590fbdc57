"""What the sweep looks at: only batches that something is due for."""

from __future__ import annotations

from typing import Any

import pytest
from pipeline import BATCH, TENANT, Bench
from sqlalchemy import Connection, event, update

from gristmill.ledger import shards
from gristmill.ledger.due import list_due, list_unwritten
from gristmill.ledger.schema import batches
from gristmill.ledger.schema import shards as shards_table
from gristmill.ledger.shards import NewShard

RUNNING = {"status": "in_progress", "total": 3}


@pytest.mark.parametrize(
    ("values", "ring_at", "due"),
    [
        ({"status": "validating"}, None, False),
        ({"status": "validating", "expires_at": 100}, None, True),
        ({"status": "validating", "expires_at": 101}, None, False),
        (RUNNING, None, False),
        (RUNNING, 100, True),
        (RUNNING, 101, False),
        (RUNNING | {"completed": 2, "failed": 1}, None, True),
        (RUNNING | {"freeze_reason": "expired"}, None, True),
        ({"status": "finalizing", "freeze_reason": "complete"}, None, True),
        ({"status": "cancelling"}, None, True),
        ({"status": "completed", "freeze_reason": "complete", "expires_at": 1}, None, False),
        ({"status": "failed"}, 1, False),
    ],
)
def test_only_what_is_due_is_looked_at(
    bench: Bench, values: dict[str, Any], ring_at: int | None, due: bool
) -> None:
    bench.create()
    with bench.ledger.write() as conn:
        conn.execute(update(batches).values(**values))
        shards.add(conn, TENANT, BATCH, 0, [NewShard(0, 1, 1, 1)])
        if ring_at is not None:
            conn.execute(update(shards_table).values(state="sent", ring_at=ring_at))

    with bench.ledger.read() as conn:
        found = list_due(conn, now=100)

    assert [batch.id for batch in found] == [BATCH] * due


def test_shards_that_are_done_are_looked_for_in_running_batches_only(bench: Bench) -> None:
    """Those of ended batches are there for days, and are many more."""
    plans: list[str] = []

    def explain(conn: Connection, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            found = conn.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", values)
            plans.extend(row[3] for row in found)

    with bench.ledger.read() as conn:
        event.listen(conn, "before_cursor_execute", explain)
        list_unwritten(conn, limit=9)

    assert plans and not any("SCAN" in line for line in plans)
    of_shards = [line for line in plans if " shards" in line]
    assert len(of_shards) == 2 and all("batch_id=?" in line for line in of_shards)
