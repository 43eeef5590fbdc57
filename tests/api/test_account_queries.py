"""Quotas, the audit log, estimates, named requests, overviews: the same on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from ledgers import ledger as ledger
from ledgers import postgresql as postgresql
from ledgers import postgresql_process as postgresql_process

from gristmill.ledger import (
    audit,
    batches,
    courses,
    estimates,
    files,
    idempotency,
    overview,
    quotas,
    shards,
    submissions,
    tenants,
)
from gristmill.ledger.audit import AuditEvent
from gristmill.ledger.batch import Submission
from gristmill.ledger.courses import Course, Point
from gristmill.ledger.estimates import Estimate, EstimateStatus, Problem
from gristmill.ledger.files import File
from gristmill.ledger.idempotency import KEPT_S, Made
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.overview import Overview
from gristmill.ledger.shards import NewShard
from gristmill.ledger.status import BatchStatus
from gristmill.types import Endpoint, ModelPin, Usage


def add_batch(ledger: Ledger, tenant_id: str, batch_id: str) -> None:
    """Of 20 rows in two Shards, of which one is done, with 70 prompt tokens in the other."""
    with ledger.write() as conn:
        batches.create(
            conn,
            tenant_id,
            batch_id,
            run_id="run",
            model=ModelPin("M", "r", "t", "float32"),
            seed="s",
            input_fingerprint="f",
            options={},
            created_at=5,
            expires_at=None,
            submission=Submission(Endpoint.CHAT, "file-1", "24h"),
        )
        new = [NewShard(n, 1, 10, 70) for n in range(2)]
        shards.add(conn, tenant_id, batch_id, 0, new)
        made = batches.get(conn, tenant_id, batch_id)
        first = shards.get(conn, tenant_id, batch_id, 0)
        assert made is not None and first is not None
        batches.advance_ingest(
            conn,
            made,
            endpoint=Endpoint.CHAT,
            byte_offset=9,
            line_no=9,
            row_idx=20,
            num_new_shards=2,
            num_new_tokens=0,
        )
        shards.record_accepted(conn, first, shards.Bitmap.empty(1), num_new=1, ring_at=9)


def test_what_is_in_use_is_that_of_open_batches_and_kept_files(ledger: Ledger) -> None:
    for tenant_id in ("mine", "theirs"):
        for i in range(2):
            add_batch(ledger, tenant_id, f"batch_{tenant_id}{i}")
            with ledger.write() as conn:
                files.add(conn, File(f"file-{tenant_id}{i}", tenant_id, "batch", "a", 2**40, 5))

    def in_use() -> list[int]:
        counts = quotas.count_batches, quotas.count_rows, quotas.count_tokens, quotas.count_bytes
        with ledger.read() as conn:
            return [count(conn, "mine") for count in counts]

    before = in_use()
    with ledger.write() as conn:
        batches.transition(conn, "mine", "batch_mine0", BatchStatus.FAILED, 9)
        files.delete(conn, "mine", "file-mine0", now=9)

    assert before == [2, 40, 140, 2 * 2**40]
    assert in_use() == [1, 20, 70, 2**40]


def test_own_quotas_are_set_and_given_back(ledger: Ledger) -> None:
    with ledger.write() as conn:
        tenants.ensure(conn, "own", now=5)
        quotas.set_own(conn, "own", {"stored_bytes": 7, "queued_tokens": None}, defaults=set())
        quotas.set_own(conn, "own", {"rows_in_flight": 1}, defaults={"stored_bytes"})
        nobody = quotas.set_own(conn, "nobody", {}, defaults=set())
        found = quotas.find_own(conn, "own")
        quotas.set_own(conn, "own", {}, defaults=set(found))
        listed = quotas.list_tenants(conn, limit=9, after_id="ow")

    assert found == {"queued_tokens": None, "rows_in_flight": 1} and nobody is None
    assert [tenant.own for tenant in listed if tenant.tenant_id == "own"] == [{}]


def test_the_audit_log_is_read_page_by_page(ledger: Ledger) -> None:
    made = [
        AuditEvent(f"audit_{i}", "mine" if i % 2 else "theirs", "a", "o", 1000 + i // 4)
        for i in range(10)
    ]
    with ledger.write() as conn:
        for event in made:
            audit.record(conn, replace(event, details={"i": event.id}))

    def pages(tenant_id: str | None) -> list[str]:
        ids: list[str] = []
        has_more = True
        while has_more:
            with ledger.read() as conn:
                page = audit.list_page(conn, tenant_id, limit=2, after_id=ids[-1] if ids else None)
            assert page is not None
            ids += [event.id for event in page.items]
            has_more = page.has_more
        return ids

    assert pages("mine") == [f"audit_{i}" for i in (9, 7, 5, 3, 1)]
    assert [found for found in pages(None) if found in {e.id for e in made}] == [
        f"audit_{i}" for i in range(9, -1, -1)
    ]
    with ledger.write() as conn:
        num_removed = audit.remove_older(conn, created_before=1001, limit=3)
        assert audit.list_page(conn, "mine", limit=9, after_id="audit_0") is None
    assert num_removed == 3
    assert len(pages("mine")) + len(pages("theirs")) == 7


def test_of_many_that_claim_an_estimate_one_has_it(ledger: Ledger) -> None:
    made = Estimate(
        *("est_1", "mine", EstimateStatus.QUEUED, "file-1", Endpoint.CHAT, ""),
        created_at=5,
        problems=(Problem("row", "c", "m\u2028", 3, None),),
        forecast={"seconds": None},
        expires_at=100,
    )
    with ledger.write() as conn:
        estimates.add(conn, made)

    def claim(due_at: int) -> bool:
        with ledger.write() as conn:
            return estimates.replace(conn, made, replace(made, due_at=due_at))

    with ThreadPoolExecutor(4) as pool:
        num_claims = sum(pool.map(claim, range(50, 58)))
    with ledger.write() as conn:
        found = estimates.get(conn, "mine", "est_1", now=9)
        due = [estimates.list_due(conn, now=now) for now in (49, 58)]
        foreign = estimates.get(conn, "theirs", "est_1", now=9)
        num_open = estimates.count_open(conn, "mine")
        num_removed = estimates.remove_expired(conn, now=100, limit=9)

    assert num_claims == 1 and found is not None and 50 <= found.due_at < 58
    assert replace(found, due_at=0) == made and foreign is None
    assert [len(some) for some in due] == [0, 1] and num_open == 1 and num_removed == 1


def test_the_first_request_with_a_key_counts_for_a_day(ledger: Ledger) -> None:
    key, first, second = uuid4().hex, Made("a" * 64, "file-1"), Made("b" * 64, "file-2")
    with ledger.write() as conn:
        kept = idempotency.keep(conn, "acme", key, first, now=1000)
        late = idempotency.keep(conn, "acme", key, second, now=1000 + KEPT_S - 1)
        other_tenant = idempotency.find(conn, "umbrella", key, now=1000)
        too_young = idempotency.remove_older(conn, now=1000 + KEPT_S - 1, limit=9)
        new = idempotency.keep(conn, "acme", key, second, now=1000 + KEPT_S)
        removed = idempotency.remove_older(conn, now=1000 + 2 * KEPT_S, limit=9)

    assert kept == late == first and other_tenant is None
    assert (too_young, new, removed) == (0, second, 1)


def test_what_a_key_has_made_is_found_within_the_time_that_is_asked_for(ledger: Ledger) -> None:
    key, made = uuid4().hex, Made("a" * 64, "file-1")
    with ledger.write() as conn:
        idempotency.keep(conn, "acme", key, made, now=1000)
        found = [idempotency.find(conn, "acme", key, now=now, within_s=600) for now in (1599, 1600)]

    assert found == [made, None]


def test_of_requests_with_one_key_at_once_that_counts_whose_transaction_is_kept(
    ledger: Ledger,
) -> None:
    key, undone = uuid4().hex, Made("a" * 64, "undone")

    def keep(i: int) -> Made:
        with ledger.write() as conn:
            return idempotency.keep(conn, "acme", key, Made(f"{i}" * 64, f"file-{i}"), now=1000)

    with ThreadPoolExecutor(4) as pool, suppress(ZeroDivisionError), ledger.write() as conn:
        kept = idempotency.keep(conn, "acme", key, undone, now=1000)
        asked = [pool.submit(keep, i) for i in range(4)]
        raise ZeroDivisionError
    found = {one.result() for one in asked}

    assert kept == undone and len(found) == 1 and undone not in found


def test_an_overview_sums_up_the_open_batches_of_one_tenant(ledger: Ledger) -> None:
    tenant_id, other = (f"seen-{uuid4().hex}" for _ in range(2))
    for i, owner in enumerate((tenant_id, tenant_id, tenant_id, other)):
        add_batch(ledger, owner, f"batch_{owner}{i}")
    running, failed = (f"batch_{tenant_id}{i}" for i in range(2))

    with ledger.write() as conn:
        batches.transition(conn, tenant_id, running, BatchStatus.IN_PROGRESS, 7)
        batches.transition(conn, tenant_id, failed, BatchStatus.FAILED, 7)
    with ledger.read() as conn:
        found = overview.find(conn, tenant_id)
        page = submissions.list_page(
            conn, tenant_id, limit=9, statuses=(BatchStatus.IN_PROGRESS, BatchStatus.FAILED)
        )
        nobodys = overview.find(conn, "nobody")

    assert found == Overview(num_validating=1, num_running=1, num_rows_left=20)
    assert page is not None and {batch.id for batch in page.items} == {running, failed}
    assert nobodys == Overview()


def test_the_course_of_a_batch_is_added_to_and_forgotten(ledger: Ledger) -> None:
    tenant_id = f"runs-{uuid4().hex}"
    batch_id = f"batch_{tenant_id}"
    add_batch(ledger, tenant_id, batch_id)

    with ledger.write() as conn:
        batch = batches.get(conn, tenant_id, batch_id)
        assert batch is not None
        for now, failures in ((100, {"invalid_value": 1}), (107, {"invalid_value": 2})):
            courses.record(conn, batch, now=now, num_rows=4, used=Usage(10, 20), failures=failures)
        found = courses.find(conn, tenant_id, batch_id)
        foreign = courses.find(conn, "rival", batch_id)
        courses.forget(conn, tenant_id, batch_id)
        after = courses.find(conn, tenant_id, batch_id)

    points = (Point(4, 10, 20), Point(4, 10, 20))
    assert found == Course(100, points=points, failures={"invalid_value": 3})
    assert foreign is None and after is None
