"""Where answers end that may be longer than any machine takes: the same for all rows of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleet_mill import FleetMill
from pipeline import TENANT, Bench
from sqlalchemy import delete, select

from gristmill.control.dispatch import dispatch
from gristmill.control.fleet_view import FleetView
from gristmill.fleet import FORGET_AFTER_S
from gristmill.ledger import schema
from gristmill.ledger.schema_fleet import workers
from gristmill.queues.base import BULK_LANE
from gristmill.row_limits import add_limit, read_limits
from gristmill.stores.keys import limits_prefix
from gristmill.types import Grammar, GrammarKind
from gristmill.wire import decode_pointer

#: More than any machine here takes.
ANY = 100_000


@pytest.fixture
def mill(bench: Bench) -> FleetMill:
    return FleetMill(bench)


def limits(mill: FleetMill, *features: str) -> list[int]:
    prefix = limits_prefix(TENANT, "one", "run-1", features or ("generate",))
    return read_limits(mill.bench.store, prefix)


def needed(mill: FleetMill) -> set[int]:
    """What Shards that are not done need, as the Ledger knows it."""
    of = schema.shards.c
    with mill.bench.ledger.read() as conn:
        return set(conn.execute(select(of.max_row_tokens).where(of.state != "done")).scalars())


def told(mill: FleetMill) -> list[int]:
    """What messages on the mixed Lane ask for."""
    leases = mill.bench.queue.receive((BULK_LANE,), 99, 0)
    for lease in leases:
        mill.bench.queue.release(lease)
    return [decode_pointer(lease.body).row_tokens for lease in leases]


def test_while_nobody_is_known_a_row_is_sent_for_a_machine_that_takes_all_of_it(
    mill: FleetMill,
) -> None:
    """The fleet stands at zero: the queue rings, and whoever comes first cuts nothing. One such is
    enough to find out, and stands in nobody's way."""
    mill.submit("one", [100] * 3, max_tokens=ANY)
    mill.submit("two", [100])

    for _ in range(3):
        dispatch(mill.control)

    assert sorted(told(mill)) == [120, ANY + 100] and limits(mill) == []


def test_a_batch_has_its_limit_when_the_first_worker_has_told_what_it_takes(
    mill: FleetMill,
) -> None:
    """Not two minutes later, when what it gave back is due to be sent again."""
    mill.submit("one", [100] * 6, max_tokens=ANY)
    dispatch(mill.control)
    mill.add("only", 512)
    mill.run(15)

    assert mill.given_back and limits(mill) == [512]
    assert mill.batch("one").completed == 6


def test_a_larger_machine_that_comes_half_way_changes_nothing(mill: FleetMill) -> None:
    mill.add("small", 512)
    mill.submit("one", [100] * 12, max_tokens=ANY)
    mill.run(9)
    half = mill.batch("one").completed
    mill.add("large", 8192)
    mill.run(15)

    assert 0 < half < 12 and mill.batch("one").completed == 12
    assert limits(mill) == [512] and len(mill.ran["small"]) > half, "it takes them as before"


def test_prompts_beyond_the_limit_wait_for_a_larger_machine_and_have_its_limit(
    mill: FleetMill,
) -> None:
    mill.add("small", 512)
    mill.submit("one", [100, 700, 100], max_tokens=ANY)
    mill.run(12, step_s=2)
    mill.add("large", 8192)
    mill.run(12, step_s=2)

    assert mill.lengths("large") == {700} and sorted(limits(mill)) == [512, 8192]


def test_a_prompt_that_nobody_takes_makes_no_limit(mill: FleetMill) -> None:
    mill.submit("one", [700], max_tokens=ANY)
    dispatch(mill.control)
    mill.add("small", 512)
    mill.run(9, step_s=3)

    assert limits(mill) == [] and needed(mill) == {ANY + 700}


def test_rows_of_other_features_have_a_limit_of_their_own(mill: FleetMill) -> None:
    mill.add("plain", 8192, features=("generate",))
    mill.add("able", 512)
    mill.submit("one", [100], max_tokens=ANY)
    mill.submit("two", [100], max_tokens=ANY, grammar=Grammar(GrammarKind.REGEX, "a+"))
    mill.run(12, step_s=2)

    grammar = limits_prefix(TENANT, "two", "run-1", ("generate", "grammar"))
    assert limits(mill) == [8192] and read_limits(mill.bench.store, grammar) == [512]


def test_a_limit_is_lowered_when_what_takes_as_much_was_not_heard_of_for_a_day(
    mill: FleetMill,
) -> None:
    mill.add("small", 512)
    mill.add("large", 8192)
    mill.submit("one", [100] * 4, max_tokens=ANY)
    mill.run(7)
    mill.kill("large")
    before = mill.batch("one").completed
    mill.run(100, step_s=25)
    waits = mill.batch("one").completed
    mill.bench.clock.advance(FORGET_AFTER_S)
    mill.beat()
    mill.run(8)

    assert 0 < before == waits < 4 and sorted(limits(mill)) == [512, 8192]
    assert mill.batch("one").completed == 4


@pytest.mark.parametrize(("longest", "made"), [(ANY, [8192]), (8092, [])])
def test_a_control_process_that_has_not_heard_of_a_machine_lowers_no_limit(
    mill: FleetMill, longest: int, made: list[int]
) -> None:
    """Another one, which reads the fleet a moment later, has made it for that machine."""
    late, early = (replace(mill.control, fleet_view=FleetView()) for _ in range(2))
    mill.add("small", 512)
    mill.bench.clock.advance(10)
    assert len(late.fleet.pools) == 1
    mill.bench.clock.advance(1)
    mill.add("large", 8192)
    mill.submit("one", [100] * 6, max_tokens=longest)

    assert dispatch(early) == 2

    assert dispatch(late) == 0 and limits(mill) == made and needed(mill) == {8192}


def test_a_ledger_that_was_lost_learns_the_limit_from_the_store(mill: FleetMill) -> None:
    """Another one, before it, has sent rows of the batch while machines were smaller."""
    mill.add("large", 8192)
    mill.submit("one", [100] * 2, max_tokens=ANY)
    add_limit(mill.bench.store, limits_prefix(TENANT, "one", "run-1", ("generate",)), 300)
    mill.run(8, works=False, step_s=2)

    assert needed(mill) == {300} == set(told(mill)) and limits(mill) == [300]


def test_what_nobody_needs_a_limit_for_has_none(mill: FleetMill) -> None:
    mill.add("only", 8192)
    mill.submit("one", [100, 3000])
    mill.run(4)

    assert mill.batch("one").completed == 2 and limits(mill) == []


def test_what_the_operator_says_is_the_limit_before_anybody_is_known(mill: FleetMill) -> None:
    settings = mill.bench.settings.model_copy(update={"fleet_max_row_tokens": 8192})
    mill.bench.settings, mill.control = settings, replace(mill.control, settings=settings)
    mill.submit("one", [100], max_tokens=ANY)

    dispatch(mill.control)

    assert {8192} == set(told(mill)) == needed(mill) and limits(mill) == [8192]


def test_where_workers_say_nothing_answers_end_where_they_must_in_the_end(mill: FleetMill) -> None:
    settings = mill.bench.settings.model_copy(update={"resend_after_s": 30.0})
    mill.bench.settings, mill.control = settings, replace(mill.control, settings=settings)
    mill.add("silent", 512)
    mill.cards["silent"] = replace(mill.cards["silent"], lanes=(BULK_LANE,))
    mill.submit("one", [100], max_tokens=ANY)
    mill.submit("two", [100] * 20)
    with mill.bench.ledger.write() as conn:
        conn.execute(delete(workers))
    mill.beat = lambda: None  # type: ignore[method-assign]

    mill.run(300, step_s=15)

    assert mill.batch("one").completed == 1 and limits(mill) == []
