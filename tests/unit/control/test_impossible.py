"""Rows that no machine can ever run are refused alone, with the reason, and keep nobody waiting."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fleet_mill import FleetMill, make_card
from pipeline import TENANT, Bench

from gristmill.control.accept import take_bells
from gristmill.control.dispatch import dispatch
from gristmill.control.outlook import Outlook, Phase, Progress
from gristmill.control.sweep import sweep
from gristmill.fleet import LOST_AFTER_S, WorkerState
from gristmill.ledger.status import BatchStatus
from gristmill.queues.base import BULK_LANE
from gristmill.stores.keys import shard_key
from gristmill.wire import decode_pointer


@pytest.fixture
def mill(bench: Bench) -> FleetMill:
    return FleetMill(bench)


def progress(mill: FleetMill, batch_id: str) -> Progress:
    found = Outlook(mill.bench.ledger, mill.bench.clock).of(mill.batch(batch_id))
    assert found is not None
    return found


def error_codes(mill: FleetMill, batch_id: str) -> list[str]:
    mill.run(5)
    file_id = mill.batch(batch_id).error_file_id
    body = mill.bench.store.get(f"t/{TENANT}/files/{file_id}").decode()
    return [json.loads(line)["response"]["body"]["error"]["code"] for line in body.splitlines()]


def test_rows_that_nobody_can_ever_run_are_refused_alone(mill: FleetMill) -> None:
    mill.add("small", 512)
    mill.add("medium", 2048)
    mill.bench.settings = mill.bench.settings.model_copy(update={"shard_max_jobs": 4})
    mill.control = mill.bench.control
    # Those of 1500 and 2500 tokens share size classes with none, or with each other.
    mill.submit("one", [100, 1500, 2500, 3000, 2100])
    mill.run(100, step_s=10)
    early = progress(mill, "one")
    before = mill.batch("one")
    mill.run(520, step_s=10)

    after = mill.batch("one")
    assert (before.completed, before.failed) == (2, 0), "the grace is not over"
    assert early.phase is Phase.NO_WORKER and "are refused" in early.detail
    assert (after.completed, after.failed) == (2, 3)
    assert error_codes(mill, "one") == ["context_length_exceeded"] * 3
    assert mill.batch("one").status is BatchStatus.COMPLETED


def test_of_a_shard_only_the_rows_that_do_not_fit_are_refused(mill: FleetMill) -> None:
    mill.add("only", 1900)
    mill.bench.settings = mill.bench.settings.model_copy(update={"shard_max_jobs": 4})
    mill.control = mill.bench.control
    batch = mill.submit("one", [1800, 1850, 1950, 2000])
    assert batch.num_shards == 1

    mill.run(620, step_s=10)

    assert (mill.batch("one").completed, mill.batch("one").failed) == (2, 2)


def test_a_machine_that_is_loading_or_away_is_waited_for(mill: FleetMill) -> None:
    mill.add("small", 512)
    mill.add("large", 8192)
    mill.states["large"] = WorkerState.LOADING
    mill.beat()
    mill.submit("one", [6000])
    mill.run(700, step_s=10)
    while_it_loads = mill.batch("one")
    mill.states["large"] = WorkerState.READY
    mill.run(15)

    assert (while_it_loads.completed, while_it_loads.failed) == (0, 0)
    assert mill.batch("one").completed == 1


def test_rows_wait_for_the_largest_machine_that_the_operator_told_of(mill: FleetMill) -> None:
    """It was gone for more than a day, and nobody remembers it."""
    settings = mill.bench.settings.model_copy(update={"fleet_max_row_tokens": 8192})
    mill.bench.settings, mill.control = settings, replace(mill.control, settings=settings)
    mill.add("small", 512)
    mill.submit("one", [6000, 100, 9000])
    mill.run(700, step_s=10)
    found = Outlook(mill.bench.ledger, mill.bench.clock, max_row_tokens=8192).of(mill.batch("one"))
    waits = mill.batch("one")
    mill.add("large", 8192)
    mill.run(15)

    assert found is not None and found.phase is Phase.NO_WORKER
    assert "takes rows of 6,020 tokens: the operator says" in found.detail
    assert (waits.completed, waits.failed) == (1, 1), "9,000 are too many for any"
    assert mill.batch("one").completed == 2


def test_what_is_longer_than_the_operator_told_of_is_refused_while_nobody_is_known(
    mill: FleetMill,
) -> None:
    settings = mill.bench.settings.model_copy(update={"fleet_max_row_tokens": 8192})
    mill.bench.settings, mill.control = settings, replace(mill.control, settings=settings)
    mill.submit("one", [6000, 9000])

    mill.run(700, step_s=10)

    assert (mill.batch("one").completed, mill.batch("one").failed) == (0, 1)


def test_where_no_worker_says_what_it_is_what_is_sent_in_vain_says_so(mill: FleetMill) -> None:
    mill.submit("one", [6000, 100])
    mill.submit("two", [100])
    card = make_card("silent", 512, lanes=(BULK_LANE,))
    for _ in range(60):  # it beats to nobody, and gives back what is too long for it
        dispatch(mill.control)
        mill.bench.clock.advance(10)
        for lease in mill.bench.queue.receive((BULK_LANE,), 3, 0):
            if decode_pointer(lease.body).row_tokens > card.max_row_tokens:
                mill.bench.queue.release(lease, mill.bench.queue.lease_s)
            else:
                mill.ran.setdefault("silent", [])
                mill.finish("silent", lease)
        while take_bells(mill.control):
            pass
        sweep(mill.control)
    found = progress(mill, "one")

    assert mill.batch("two").status is BatchStatus.COMPLETED
    assert mill.batch("one").completed == 1
    assert "rows of up to 6,001 tokens" in found.detail
    assert "No worker has told the control side what it is" in found.detail


def test_features_that_nobody_has_are_refused_too(mill: FleetMill) -> None:
    mill.add("plain", 8192, features=("generate",))
    mill.submit("one", [100], logprobs=3)
    mill.submit("two", [100])

    mill.run(630, step_s=10)

    assert mill.batch("two").completed == 1
    assert error_codes(mill, "one") == ["unsupported_feature"]


def test_shards_that_wait_for_a_machine_keep_none_of_their_class_waiting(mill: FleetMill) -> None:
    mill.add("small", 512)
    mill.add("medium", 6000)
    mill.add("large", 8192)
    mill.kill("large")
    mill.bench.clock.advance(LOST_AFTER_S + 1)
    mill.beat()
    mill.submit("one", [7000] * 40 + [5500])

    mill.run(5)

    assert mill.ran["medium"] == [("one", 5500)]


def test_rows_that_nobody_can_run_keep_those_of_others_waiting_nowhere(mill: FleetMill) -> None:
    """Of the same size class; the answers of what can run end where nobody takes longer rows."""
    mill.add("small", 512)
    mill.add("medium", 6000)
    mill.submit("theirs", [7500] * 3, tenant_id="other")
    mill.submit("mine", [4200] * 3 + [7500] * 30 + [4300], max_tokens=3800)

    mill.run(20)

    assert mill.ran["medium"] == [("mine", 4200)] * 3 + [("mine", 4300)]


def test_a_shard_that_the_store_has_lost_keeps_no_other_batch(mill: FleetMill) -> None:
    mill.add("small", 512)
    lost = mill.submit("a", [1500])
    mill.submit("b", [1500])
    mill.bench.store.delete(shard_key(TENANT, lost.id, lost.run_id, 0))

    mill.run(630, step_s=10)

    assert mill.batch("b").failed == 1 and mill.batch("a").failed == 0
