"""What is sent where, over a real Ledger: workers come and go, and take rows up to a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleet_mill import FleetMill
from pipeline import PIN, TENANT, Bench
from sqlalchemy import select

from gristmill.control.dispatch import dispatch, ring
from gristmill.control.outlook import Outlook, Phase, Progress
from gristmill.control.sweep import sweep
from gristmill.errors import QueueError, QueueRefused
from gristmill.fleet import LOST_AFTER_S, lane_of
from gristmill.ledger import schema, shards
from gristmill.ledger.status import BatchStatus
from gristmill.queues.base import BULK_LANE

OTHER = replace(PIN, name="other", revision="fedcba98")


@pytest.fixture
def mill(bench: Bench) -> FleetMill:
    return FleetMill(bench)


@pytest.fixture
def three(mill: FleetMill) -> FleetMill:
    for name, limit in (("small", 512), ("medium", 2048), ("large", 8192)):
        mill.add(name, limit)
    return mill


def progress(mill: FleetMill, batch_id: str) -> Progress:
    found = Outlook(mill.bench.ledger, mill.bench.clock).of(mill.batch(batch_id))
    assert found is not None
    return found


def lanes_sent(mill: FleetMill) -> list[str | None]:
    with mill.bench.ledger.read() as conn:
        query = select(schema.shards.c.lane).where(schema.shards.c.state == "sent")
        return sorted(conn.execute(query).scalars(), key=str)


def test_while_workers_are_alike_or_silent_all_goes_to_the_mixed_lane(mill: FleetMill) -> None:
    mill.submit("one", [100, 3000] * 2)
    dispatch(mill.control)
    mill.add("a", 8192)
    mill.add("b", 8192)
    mill.run(1, works=False)

    assert set(lanes_sent(mill)) == {BULK_LANE}


def test_each_row_runs_where_it_fits_and_nowhere_else(three: FleetMill) -> None:
    three.submit("one", [50, 200, 1500, 6000] * 5)

    three.run(40)

    assert three.batch("one").status is BatchStatus.COMPLETED
    assert three.lengths("small") <= {50, 200}
    assert three.lengths("medium") <= {50, 200, 1500} and 1500 in three.lengths("medium")
    assert 6000 in three.lengths("large")
    assert three.given_back == [], "nothing was sent to who could not run it"
    assert sum(map(len, three.ran.values())) == 20


def test_a_batch_that_begins_to_run_does_not_wait_until_the_fleet_is_read_again(
    three: FleetMill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.control.fleet_view._FRESH_S", 1e6)
    three.submit("one", [6000])
    dispatch(three.control)

    for name in ("two", "three"):
        three.bench.clock.advance(500)
        three.submit(name, [100])
        dispatch(three.control)

    assert len(lanes_sent(three)) == 3


def test_a_lane_that_is_full_holds_up_no_other(three: FleetMill) -> None:
    """Long rows stand in front, and their machine takes nothing for a while."""
    three.submit("one", [6000] * 30 + [100] * 10)

    for _ in range(20):
        dispatch(three.control)
        three.bench.clock.advance(1)
        three.turn("small")
        three.turn("medium")

    assert len(three.ran["small"]) + len(three.ran["medium"]) == 10
    assert len(lanes_sent(three)) == 12, "two of the long ones, and ten whose Bells nobody took"


def test_what_was_sent_to_a_pool_that_died_runs_elsewhere(three: FleetMill) -> None:
    three.add("twin", 8192 * 2)  # another pool that can
    batch = three.submit("one", [6000] * 8)
    dispatch(three.control)
    held = three.take("large") + three.take("large")
    assert held, "and it dies with it"
    dead = lane_of(three.cards["large"])
    three.kill("large")

    three.run(int(LOST_AFTER_S) + 30)

    assert three.batch("one").status is BatchStatus.COMPLETED
    assert len(three.ran["twin"]) == 8 and not three.ran["large"]
    assert three.batch("one").completed == batch.total
    assert dead not in three.bench.queue._lanes, "nothing was left on it"


def test_a_worker_that_is_silent_but_works_keeps_its_shard(three: FleetMill) -> None:
    """Its beats and Bells are lost, its Segments are not."""
    three.add("twin", 8192 * 2)
    three.submit("one", [6000])
    dispatch(three.control)
    taken_by = next(name for name in ("large", "twin") if (lease := three.take(name)))
    other = "twin" if taken_by == "large" else "large"
    three.cards = {other: three.cards[other], "small": three.cards["small"]} | {
        taken_by: three.cards[taken_by]
    }
    three.finish(taken_by, lease[0])
    three.bench.queue.ack(*three.bench.queue.receive("control", 99, 0))  # the Bell is lost
    three.kill(taken_by)

    three.run(int(LOST_AFTER_S) + 30)

    assert three.batch("one").completed == 1 and not three.ran[other]


def test_what_waits_for_a_machine_says_so_and_goes_on_when_it_comes(three: FleetMill) -> None:
    three.submit("one", [100, 6000])
    three.submit("two", [6000])
    three.kill("large")
    three.run(int(LOST_AFTER_S) + 20)
    waiting, only_long = progress(three, "one"), progress(three, "two")
    assert three.batch("one").completed == 1
    three.add("again", 8192)
    three.run(10)

    for found in (waiting, only_long):
        assert found.phase is Phase.NO_WORKER
        assert "takes rows of 6,020 tokens" in found.detail and "take 2,048" in found.detail
    assert three.batch("one").status is BatchStatus.COMPLETED
    assert three.batch("two").status is BatchStatus.COMPLETED


def test_a_part_that_waits_is_told_beside_what_runs(three: FleetMill) -> None:
    three.kill("large")
    three.bench.clock.advance(LOST_AFTER_S + 1)
    three.beat()
    three.submit("one", [100] * 20 + [6000])
    three.run(3)

    found = progress(three, "one")

    assert found.phase is Phase.RUNNING
    assert "A part of it does not run: It waits for a machine" in found.detail


def test_work_of_a_model_is_not_sent_while_only_workers_of_another_are_there(
    mill: FleetMill,
) -> None:
    mill.add("other", 8192, model=OTHER)
    mill.submit("mine", [100] * 3)
    mill.submit("theirs", [100] * 3, model=OTHER)
    mill.run(5)
    waiting = progress(mill, "mine")
    before = mill.batch("mine").completed
    mill.add("mine", 8192)
    mill.run(10)

    assert waiting.phase is Phase.NO_WORKER and "machine of the model fake" in waiting.detail
    assert before == 0 and mill.batch("theirs").completed == 3
    assert mill.batch("mine").completed == 3
    assert {batch for batch, _ in mill.ran["other"]} == {"theirs"}


def test_what_lies_on_the_mixed_lane_for_nobody_is_taken_back(mill: FleetMill) -> None:
    """It was sent while no worker had said what he is."""
    mill.submit("one", [6000] * 2)
    dispatch(mill.control)
    mill.add("small", 512)
    mill.bench.clock.advance(mill.bench.settings.resend_after_s + 1)
    mill.beat()
    sweep(mill.control)

    assert lanes_sent(mill) == []


def test_a_tenants_share_is_of_the_whole_fleet(three: FleetMill) -> None:
    three.submit("long", [6000] * 60, tenant_id="long")
    three.submit("short", [100] * 400, tenant_id="short")

    three.run(30)

    # One Shard a second each: the long ones have a machine, the short ones the others.
    assert three.batch("long", "long").completed >= 25
    assert three.batch("short", "short").completed >= 50


def test_a_short_row_is_not_kept_waiting_by_a_batch_in_front_that_cannot_run(
    three: FleetMill,
) -> None:
    three.kill("large")
    three.bench.clock.advance(LOST_AFTER_S + 1)
    three.beat()
    for i in range(30):
        three.submit(f"long-{i:02}", [6000])
    three.submit("short", [100])

    three.run(4)

    assert three.batch("short").completed == 1


@pytest.mark.parametrize("call", ["send", "stats"])
@pytest.mark.parametrize("kind", [QueueError, QueueRefused])
def test_a_lane_that_takes_nothing_for_a_while_holds_up_no_other(
    three: FleetMill, monkeypatch: pytest.MonkeyPatch, call: str, kind: type[QueueError]
) -> None:
    """SQS makes none for a minute that was taken away; another process may have no right to."""
    bad, real = lane_of(three.cards["large"]), getattr(three.bench.queue, call)

    def refuse(lane: str, *args: object, **options: object) -> object:
        if lane == bad:
            raise kind("not now")
        return real(lane, *args, **options)

    monkeypatch.setattr(three.bench.queue, call, refuse)
    three.submit("one", [6000, 100, 6000, 100])
    three.run(5)
    before = three.batch("one").completed
    lanes = lanes_sent(three)
    monkeypatch.undo()
    three.run(30)

    assert before == 2 and bad not in lanes
    assert three.batch("one").status is BatchStatus.COMPLETED


def test_what_was_sent_before_anybody_is_known_is_left_to_who_can_run_it(mill: FleetMill) -> None:
    """The smallest worker is ready first, and would refuse what is for one that still loads."""
    mill.submit("one", [6000])
    dispatch(mill.control)
    mill.add("small", 512)
    mill.turn("small")
    mill.add("large", 8192)
    mill.run(180)

    assert mill.given_back[0] == ("small", 0) and mill.ran["small"] == []
    assert mill.batch("one").completed == 1


def test_a_message_for_a_larger_machine_does_not_stand_in_the_way_of_a_newer_one(
    mill: FleetMill,
) -> None:
    """The larger one is forgotten, and what cannot be longer here runs on what is left."""
    batch = mill.submit("one", [100], max_tokens=5000)
    with mill.bench.ledger.read() as conn:
        shard = shards.get(conn, TENANT, "one", 0)
    assert shard is not None
    mill.add("small", 512)
    ring(mill.control, batch, shard, row_tokens=5100)
    mill.turn("small")
    ring(mill.control, batch, shard, row_tokens=512)
    mill.turn("small")

    assert mill.given_back == [("small", 0)]
    assert mill.ran["small"] == [("one", 100)]


def test_what_lies_on_the_mixed_lane_for_a_few_goes_to_their_own(mill: FleetMill) -> None:
    """Sent while all were alike; those that came since only give it back."""
    mill.add("large", 8192)
    mill.submit("one", [6000] * 2)
    dispatch(mill.control)
    before = lanes_sent(mill)
    mill.add("small", 512)
    mill.bench.clock.advance(mill.bench.settings.resend_after_s + 1)
    mill.beat()
    sweep(mill.control)
    mill.run(3, works=False)

    assert before == [BULK_LANE] * 2
    assert lanes_sent(mill) == [lane_of(mill.cards["large"])] * 2


def test_pools_whose_limits_lie_within_one_size_class_all_get_their_rows(mill: FleetMill) -> None:
    for name, limit in (("a", 100), ("b", 200), ("c", 450)):
        mill.add(name, limit)
    mill.submit("one", [60, 150, 400] * 4)

    mill.run(10)

    assert mill.batch("one").status is BatchStatus.COMPLETED
    assert mill.lengths("a") <= {60} and 150 in mill.lengths("b") and mill.given_back == []


@pytest.mark.parametrize(("num_short", "first"), [(2, 6000), (30, 100)])
def test_the_shortest_rows_go_first_unless_a_smaller_machine_would_run_out_of_them(
    mill: FleetMill, num_short: int, first: int
) -> None:
    for name, limit, speed in (("small", 512, 100.0), ("large", 8192, 1000.0)):
        rates = ((512, speed * 10), (8192, speed * 10))
        mill.add(name, limit, prefill_tokens_per_s=rates, decode_tokens_per_s=speed)
    mill.submit("one", [6000] * 6 + [100] * num_short)

    mill.run(60)

    assert mill.batch("one").status is BatchStatus.COMPLETED
    assert [length for _, length in mill.ran["large"]][:4] == [first] * 4
