"""What the Ledger allows: the documented edges, one tenant's rows, our own files."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline import BATCH, TENANT, Bench
from sqlalchemy import update

from gristmill.errors import UsageError
from gristmill.ledger import batches, files, segments, shards
from gristmill.ledger.batch import Batch
from gristmill.ledger.ledger import open_sqlite
from gristmill.ledger.schema import batches as batches_table
from gristmill.ledger.schema import metadata
from gristmill.ledger.shards import Bitmap, NewShard
from gristmill.ledger.status import EDGES, END_OF, FREEZES_FROM, BatchStatus, FreezeReason
from gristmill.types import Bell


def set_status(bench: Bench, status: BatchStatus) -> None:
    with bench.ledger.write() as conn:
        conn.execute(update(batches_table).values(status=status))


@pytest.mark.parametrize("old", BatchStatus)
def test_a_batch_goes_along_the_documented_edges_only(bench: Bench, old: BatchStatus) -> None:
    bench.create()
    for new in set(BatchStatus) - {BatchStatus.VALIDATING}:
        set_status(bench, old)

        with bench.ledger.write() as conn:
            changed = batches.transition(conn, TENANT, BATCH, new, 42)

        assert changed == (new in EDGES[old])
        assert bench.batch.status is (new if changed else old)


@pytest.mark.parametrize(("status", "reason"), list(itertools.product(BatchStatus, FreezeReason)))
def test_a_batch_freezes_once_and_reaches_the_end_of_its_reason(
    bench: Bench, status: BatchStatus, reason: FreezeReason
) -> None:
    bench.create()
    set_status(bench, status)
    if status not in FREEZES_FROM[reason]:
        with bench.ledger.write() as conn:
            assert not batches.freeze(conn, TENANT, BATCH, reason, 42)
        return

    with bench.ledger.write() as conn:
        frozen = [batches.freeze(conn, TENANT, BATCH, reason, 42) for _ in range(2)]
        cancelled = batches.transition(conn, TENANT, BATCH, BatchStatus.CANCELLING, 43)
    with bench.ledger.write() as conn:
        published = [
            batches.publish(conn, bench.batch, output_file_id="f", error_file_id=None, now=44)
            for _ in range(2)
        ]

    assert (frozen, cancelled, published) == ([True, False], False, [True, False])
    assert bench.batch.status is END_OF[reason]


def test_every_table_has_a_tenant_and_no_other_tenant_sees_a_row(bench: Bench) -> None:
    without = {name for name, table in metadata.tables.items() if "tenant_id" not in table.c}
    same_for_all = {"models", "workers", "chores", "lanes", "paces"}
    only_refuses = {"ended_sessions"}
    assert without == same_for_all | only_refuses
    batch = bench.create()
    with bench.ledger.write() as conn:
        shards.add(conn, TENANT, BATCH, 0, [NewShard(0, 1, 1, 1)])
        segments.add(conn, Bell(TENANT, BATCH, "run", 0, "att", 0), number=1, num_results=1)
        files.add(conn, files.File("file-1", TENANT, "batch_output", "x.jsonl", 1, 1))

    def seen(tenant_id: str) -> list[object]:
        with bench.ledger.write() as conn:
            return [
                batches.get(conn, tenant_id, BATCH),
                *batches.list_newest(conn, tenant_id),
                shards.get(conn, tenant_id, BATCH, 0),
                *shards.list_slice(conn, tenant_id, BATCH, 0),
                *shards.list_waiting(conn, tenant_id, BATCH, 9),
                *segments.list_with_results(conn, tenant_id, BATCH, "run", 0),
                *segments.stream_all(conn, tenant_id, BATCH),
                files.get(conn, tenant_id, "file-1"),
            ]

    assert len([found for found in seen(TENANT) if found]) == 8
    assert not any(seen("rival"))
    with bench.ledger.write() as conn:
        assert not batches.transition(conn, "rival", BATCH, BatchStatus.CANCELLING, 1)
        assert shards.all_done(conn, "rival", BATCH)
    assert isinstance(batch, Batch)


def test_a_transaction_that_fails_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError), bench.ledger.write() as conn:
        files.add(conn, files.File("file-1", TENANT, "batch_output", "x.jsonl", 1, 1))
        raise ZeroDivisionError

    with bench.ledger.read() as conn:
        assert files.get(conn, TENANT, "file-1") is None


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, foreign, newer = (tmp_path / name for name in ("text", "foreign", "newer"))
    text.write_text("My diary, which is longer than the header of a database. " * 20)
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    open_sqlite(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")

    for path, words in ((text, "cannot be used"), (foreign, "not a ledger"), (newer, "schema 99")):
        with pytest.raises(UsageError, match=words):
            open_sqlite(path)

    assert text.read_text().startswith("My diary")
    with sqlite3.connect(foreign) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    assert names == ["mine"]


@given(st.integers(1, 70), st.lists(st.integers(0, 69)))
def test_a_bitmap_remembers_each_job_once(num_jobs: int, idxs: list[int]) -> None:
    packed = Bitmap.empty(num_jobs).to_bytes()
    seen: set[int] = set()
    for idx in (idx for idx in idxs if idx < num_jobs):
        bitmap = Bitmap(packed)
        assert bitmap.add(idx) == (idx not in seen)
        seen.add(idx)
        packed = bitmap.to_bytes()
    assert len(packed) == -(-num_jobs // 8)
