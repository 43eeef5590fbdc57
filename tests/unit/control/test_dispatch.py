"""Dispatch over a real Ledger: fair shares, deadlines, priorities, budgets, two of them at once."""

from __future__ import annotations

import pytest
from mill import Mill, jain_index
from pipeline import Bench
from sqlalchemy import event, insert

from gristmill.control.dispatch import dispatch
from gristmill.ledger import schema_dispatch, shards, turns
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.queues.base import BULK_LANE
from gristmill.wire import decode_pointer


@pytest.fixture
def mill(bench: Bench) -> Mill:
    """A thousand tokens a second; a Shard is two seconds of work, the window two Shards."""
    bench.settings = bench.settings.model_copy(
        update={"shard_max_jobs": 4, "dispatch_window_shards": 2, "shard_max_tokens": 2000}
    )
    return Mill(bench)


def sent(mill: Mill) -> list[str]:
    """The batches of the Shards that wait on the Lane, in order."""
    leases = mill.bench.queue.receive(BULK_LANE, 99, 0)
    return [decode_pointer(lease.body).batch_id for lease in leases]


def ended_at(mill: Mill, tenant_id: str, batch_id: str) -> int | None:
    return mill.batch(tenant_id, batch_id).completed_at


def test_a_tenant_with_a_hundred_times_the_backlog_gets_the_same(mill: Mill) -> None:
    for i in range(20):
        mill.submit("large", f"large-{i}", num_jobs=200, prompt_tokens=900, due_in_s=24 * 3600)
    mill.run(30)
    mill.submit("small", "small-0", num_jobs=40, prompt_tokens=900, due_in_s=24 * 3600)
    before = mill.finished.copy()

    mill.run(60)

    since = mill.finished - before
    assert jain_index([since["large"], since["small"]]) >= 0.95
    assert sum(since.values()) >= 0.95 * 60 * mill.tokens_per_s


def test_shares_are_of_tokens_that_were_needed_not_of_those_expected(mill: Mill) -> None:
    """One tenant's answers are ten times as long as its limit let expect, the other's are short."""
    mill.submit("long", "long-0", num_jobs=400, answer_tokens=1600, max_tokens=100)
    mill.submit("short", "short-0", num_jobs=400, answer_tokens=1, max_tokens=1000)

    mill.run(120)

    assert jain_index([mill.finished["long"], mill.finished["short"]]) >= 0.95


def test_three_tenants_on_two_workers_get_the_same_and_idle_ones_leave_no_gap(mill: Mill) -> None:
    mill.num_workers = 2
    for tenant in "abc":
        mill.submit(tenant, f"{tenant}-0", num_jobs=200 if tenant != "c" else 20)

    mill.run(20)
    even = [mill.finished[tenant] for tenant in "abc"]
    mill.run(30)

    assert jain_index(even) >= 0.95
    assert mill.batch("c", "c-0").status is BatchStatus.COMPLETED
    assert mill.finished.total() >= 0.95 * 50 * mill.tokens_per_s


def test_a_deadline_that_can_be_met_is_met_and_shares_are_made_even_afterwards(mill: Mill) -> None:
    for i in range(4):
        mill.submit("patient", f"patient-{i}", num_jobs=400, due_in_s=24 * 3600)
    mill.run(20)
    # Half of the speed would take 120 s.
    mill.submit("hurried", "soon", num_jobs=120, due_in_s=90)
    mill.submit("hurried", "later", num_jobs=400, due_in_s=24 * 3600)
    began = mill.bench.clock.now
    before = mill.finished.copy()

    mill.run(90)
    in_between = (mill.finished - before)["patient"]
    mill.run(60)

    at = ended_at(mill, "hurried", "soon")
    assert at is not None and at <= began + 90
    assert in_between > 0  # nobody waits without end
    since = mill.finished - before
    assert jain_index([since["patient"], since["hurried"]]) >= 0.95


@pytest.mark.parametrize("heard_s_ago", [7 * 86_400, -1000], ids=["last week", "just now"])
def test_the_speed_of_another_model_makes_no_deadline_look_safe(
    mill: Mill, heard_s_ago: float
) -> None:
    """Ten times as fast as the workers here, which need 60 of the 90 seconds."""
    with mill.bench.ledger.write() as conn:
        conn.execute(
            insert(schema_dispatch.paces).values(
                lane=BULK_LANE,
                model_name="another",
                num_tokens=1e6,
                busy_s=100.0,
                heard_at=mill.bench.clock() - heard_s_ago,
            )
        )
    mill.submit("patient", "patient-0", num_jobs=1000, due_in_s=24 * 3600)
    mill.run(20)
    mill.submit("hurried", "soon", num_jobs=120, due_in_s=90)
    began = mill.bench.clock.now

    mill.run(90)

    at = ended_at(mill, "hurried", "soon")
    assert at is not None and at <= began + 90


def test_the_speed_that_workers_had_before_they_went_is_no_reason_to_hurry(mill: Mill) -> None:
    mill.submit("patient", "patient-0", num_jobs=1000, due_in_s=24 * 3600)
    mill.run(20)
    mill.bench.clock.advance(100)
    mill.submit("hurried", "soon", num_jobs=120, due_in_s=90)
    sent(mill)  # makes room

    assert dispatch(mill.bench.control) == 2

    with mill.bench.ledger.write() as conn:
        assert turns.hold_lane(conn, BULK_LANE).urgent_until is None


def test_the_higher_priority_of_a_tenant_goes_first_whatever_is_due_sooner(mill: Mill) -> None:
    mill.submit("acme", "low", num_jobs=8, due_in_s=3600, priority=-1)
    mill.submit("acme", "usual", num_jobs=4, due_in_s=7200)
    mill.submit("acme", "high", num_jobs=4, due_in_s=9000, priority=5)

    found = []
    for _ in range(2):
        dispatch(mill.bench.control)
        found += sent(mill)

    assert found == ["high", "usual", "low", "low"]


def test_priority_is_worth_nothing_against_another_tenant(mill: Mill) -> None:
    mill.submit("modest", "modest-0", num_jobs=40)
    mill.submit("proud", "proud-0", num_jobs=40, priority=100)

    dispatch(mill.bench.control)

    assert sorted(sent(mill)) == ["modest-0", "proud-0"]


def test_a_budget_of_tokens_ends_a_batch_with_what_is_finished(mill: Mill) -> None:
    """500 tokens a row, four rows in a Shard."""
    mill.num_workers = 4
    mill.submit("acme", "capped", num_jobs=400, max_total_tokens=30_000)
    mill.submit("acme", "free", num_jobs=40)

    mill.run(60)

    batch = mill.batch("acme", "capped")
    assert batch.status is BatchStatus.COMPLETED and batch.freeze_reason is FreezeReason.BUDGET
    assert batch.completed * 500 == batch.usage.prompt_tokens + batch.usage.completion_tokens
    # At most a Shard more than was expected to fit.
    assert 30_000 <= batch.completed * 500 <= 30_000 + 2000
    assert batch.completed + batch.failed == batch.total == 400
    assert mill.batch("acme", "free").freeze_reason is FreezeReason.COMPLETE


def test_a_budget_of_money_ends_a_batch_too(mill: Mill) -> None:
    """A row costs 400 * 1 + 100 * 4 = 800 millionths."""
    price = {"prompt": "1", "cached": "0.5", "completion": "4"}
    mill.submit("acme", "capped", num_jobs=400, max_cost="0.0241", price=price)

    mill.run(60)

    batch = mill.batch("acme", "capped")
    assert batch.freeze_reason is FreezeReason.BUDGET
    assert 31 <= batch.completed <= 31 + 4


def test_answers_longer_than_expected_exceed_a_budget_by_what_is_under_way(mill: Mill) -> None:
    mill.num_workers = 2
    mill.submit(
        "acme", "capped", num_jobs=400, answer_tokens=1600, max_tokens=100, max_total_tokens=30_000
    )

    mill.run(60)

    batch = mill.batch("acme", "capped")
    assert batch.freeze_reason is FreezeReason.BUDGET
    # Two Shards are with workers, two wait on the Lane.
    assert 30_000 <= batch.completed * 2000 <= 30_000 + 4 * 8000


def test_a_budget_that_is_not_reached_changes_nothing(mill: Mill) -> None:
    mill.submit("acme", "capped", num_jobs=40, max_total_tokens=20_001)

    mill.run(40)

    assert mill.batch("acme", "capped").freeze_reason is FreezeReason.COMPLETE


def test_two_dispatchers_at_once_send_each_shard_once(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=40)
    mill.submit("other", "two", num_jobs=40)
    other = Mill(mill.bench)
    found: list[tuple[str, int]] = []
    for _ in range(40):
        for one in (mill, other):
            dispatch(one.bench.control)
        leases = mill.bench.queue.receive(BULK_LANE, 99, 0)
        pointers = [decode_pointer(lease.body) for lease in leases]
        found += [(pointer.batch_id, pointer.n) for pointer in pointers]

    assert len(found) == len(set(found)) == 20


def test_a_round_reads_no_more_with_a_large_backlog(mill: Mill) -> None:
    """Neither Shards nor batches that wait behind others are read."""
    engine = mill.bench.ledger._engine
    num_rows: list[int] = []

    @event.listens_for(engine, "after_cursor_execute")
    def count(*_: object) -> None:
        num_rows.append(1)

    def statements() -> int:
        mill.bench.clock.advance(1)
        num_rows.clear()
        dispatch(mill.bench.control)
        assert len(sent(mill)) == 2
        return len(num_rows)

    mill.submit("acme", "first", num_jobs=40, due_in_s=3600)
    small = statements()
    for i in range(10):
        mill.submit("acme", f"more-{i}", num_jobs=100, due_in_s=7200)
    mill.bench.clock.advance(1)

    assert statements() <= small


def test_a_lane_whose_queue_forgot_all_is_filled_again(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=8)
    dispatch(mill.bench.control)
    assert sent(mill) == ["one", "one"] and dispatch(mill.bench.control) == 0

    with mill.bench.ledger.write() as conn:
        shards.recall(conn, "acme", "one")

    assert dispatch(mill.bench.control) == 2
