"""What the Ledger knows as gauges: the backlog, the batches, the fleet, what tokens cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from mill import Mill
from pipeline import PIN, Bench

from gristmill.control.backlog_times import BacklogTimes
from gristmill.control.gauges import LedgerGauges
from gristmill.control.worker_speeds import WorkerSpeeds
from gristmill.errors import StoreError
from gristmill.fleet import KnownWorker, WorkerBeat, WorkerCard, WorkerState, lane_of
from gristmill.ledger import backlog, models, workers
from gristmill.ledger.models import ServedModel
from gristmill.ledger.size_classes import Kind
from gristmill.metrics import Process
from gristmill.pools import fleet_of
from gristmill.prices import Price, PriceTable
from gristmill.telemetry import Tally

CARD = WorkerCard("wrk-1", "host", PIN, "cpu", 8192, 64, features=("generate",))
PRICE = Price.from_wire({"prompt": "1", "cached": "0.5", "completion": "3"})


@pytest.fixture
def mill(bench: Bench) -> Mill:
    bench.settings = bench.settings.model_copy(
        update={"shard_max_jobs": 4, "dispatch_window_shards": 1, "shard_max_tokens": 2000}
    )
    return Mill(bench)


def look(bench: Bench, *, prices: PriceTable | None = None) -> dict[tuple[str, ...], float]:
    """By name (without the prefix) and labels."""
    control = replace(bench.control, prices=prices or PriceTable())
    tally = Tally(Process.CONTROL)
    tally.on_look(LedgerGauges(control, tally).put)
    return {
        (series.metric.name.removeprefix("gristmill_"), *labels): value
        for series in tally.look()
        for labels, value in series.values.items()
        if isinstance(value, int | float)
    }


def announce(
    bench: Bench, worker_id: str, state: WorkerState, *, seq: int = 1, **more: Any
) -> None:
    beat = WorkerBeat(replace(CARD, worker_id=worker_id, **more), seq, state, 0.0)
    with bench.ledger.write() as conn:
        workers.put_beat(conn, beat, now=bench.control.now)


def test_the_backlog_is_told_in_tokens_shards_rows_and_seconds(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=10)
    mill.submit("other", "two", num_jobs=6)
    before = look(mill.bench)
    mill.run(60)
    after = look(mill.bench)

    assert before["backlog_tokens", "bulk", "fake"] == 16 * 500
    assert before["backlog_rows", "bulk", "fake"] == 16
    assert before["backlog_shards", "bulk", "fake", "waiting"] == 5
    seconds = 16 * 500 / mill.bench.settings.worker_tokens_per_s
    assert before["backlog_seconds", "bulk", "fake"] == seconds
    assert before["backlog_worker_seconds", "bulk", "fake"] == seconds
    assert not any(value for name, value in after.items() if "backlog" in name[0])


def test_a_worker_counts_for_its_model_and_for_each_of_its_adapters(mill: Mill) -> None:
    label = f"legal@{'0' * 32}"
    announce(mill.bench, "wrk-a", WorkerState.READY, adapters=(label,), busy_tokens_per_s=50.0)
    announce(mill.bench, "wrk-b", WorkerState.READY, busy_tokens_per_s=100.0)

    found = look(mill.bench)

    assert found["workers", "fake", "ready"] == 2 and found["workers", "legal", "ready"] == 1
    with mill.bench.ledger.read() as conn:
        known = workers.list_workers(conn)
    speeds = WorkerSpeeds(known, mill.bench.control.now, assumed=1.0)
    assert [speeds.of_one("bulk", name) for name in ("fake", "legal")] == [75.0, 50.0]
    assert [speeds.num_alive("bulk", name) for name in ("fake", "legal")] == [2, 1]


def test_what_is_out_with_workers_is_part_of_the_backlog(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=40)
    mill.run(5)
    found = look(mill.bench)

    assert found["backlog_shards", "bulk", "fake", "sent"] >= 1
    left = found["backlog_rows", "bulk", "fake"]
    assert found["backlog_tokens", "bulk", "fake"] == left * 500
    assert 0 < left < 40


def test_what_one_worker_needs_stays_as_it_is_while_workers_come_and_go(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=16)
    bench, ids = mill.bench, [f"wrk-{n}" for n in range(8)]

    def seconds() -> tuple[float, float]:
        found = look(bench)
        return tuple(
            found[name, "bulk", "fake"] for name in ("backlog_worker_seconds", "backlog_seconds")
        )

    announce(bench, "wrk-0", WorkerState.LOADING)
    before_any_worked = seconds()
    for worker_id in ids:
        announce(bench, worker_id, WorkerState.READY, busy_tokens_per_s=250.0)
    eight = seconds()
    announce(bench, "wrk-8", WorkerState.LOADING)
    nine = seconds()
    announce(bench, "wrk-8", WorkerState.READY, seq=2)
    ready = seconds()
    for n, worker_id in enumerate(ids[1:]):
        state = WorkerState.ENDED if n % 2 else WorkerState.DRAINING
        announce(bench, worker_id, state, seq=2, busy_tokens_per_s=250.0)
    two = seconds()
    bench.clock.advance(3600)
    none = seconds()

    assert before_any_worked == (8, 8)
    assert eight == (32, 4)
    assert nine == ready == (32, pytest.approx(32 / 9))
    assert two == (32, 16)
    assert none == (32, 32)


def test_the_lane_of_a_pool_is_told_by_its_own_workers(bench: Bench) -> None:
    fast = replace(CARD, worker_id="wrk-1", device="cuda H100", busy_tokens_per_s=4000.0)
    slow = replace(CARD, worker_id="wrk-2", busy_tokens_per_s=200.0)
    beats = [WorkerBeat(card, 1, WorkerState.READY, 0.0) for card in (fast, fast, slow)]
    beats[1] = replace(beats[1], card=replace(fast, worker_id="wrk-3"))
    known = [KnownWorker(beat, 0.0, 1000.0) for beat in beats]

    speeds = WorkerSpeeds(known, 1000.0, assumed=1.0)
    later = WorkerSpeeds(known, 5000.0, assumed=1.0)

    assert (speeds.of_one(lane_of(fast), "fake"), speeds.num_alive(lane_of(fast), "fake")) == (
        4000,
        2,
    )
    assert speeds.of_one("bulk", "fake") == pytest.approx(8200 / 3)
    assert speeds.of_one("pool-of-old", "fake") == pytest.approx(8200 / 3)
    assert speeds.of_one("bulk", "other") == 1
    assert later.of_one(lane_of(slow), "fake") == 200
    assert later.num_alive("bulk", "fake") == 0


def make_kind(limit: int, num_tokens: int) -> Kind:
    return Kind(PIN, f"{limit}/{limit}/generate", limit, limit, 1, 1, 1, 2, num_tokens)


def test_lanes_are_worked_off_at_once_and_long_rows_only_by_those_that_take_them() -> None:
    """Two small workers of 100 tokens/s and a large one of 200."""
    large = replace(CARD, max_row_tokens=32768, busy_tokens_per_s=200.0)
    small = replace(CARD, busy_tokens_per_s=100.0)
    cards = [replace(c, worker_id=f"wrk-{n}") for n, c in enumerate((large, small, small))]
    known = [KnownWorker(WorkerBeat(card, 1, WorkerState.READY, 0.0), 0.0, 9.0) for card in cards]
    fleet, speeds = fleet_of(known, 9.0), WorkerSpeeds(known, 9.0, assumed=1.0)

    def times(sent: dict[str, int], *kinds: Kind) -> tuple[float, float]:
        """Of the mixed Lane, and of all."""
        tokens = {(lane, "fake"): float(num) for lane, num in sent.items()}
        found = BacklogTimes(tokens, kinds, fleet, speeds)
        return found.of_lane_s("bulk", "fake"), found.of_model_s("fake")

    own = {"large": lane_of(large), "small": lane_of(small)}
    assert times({"bulk": 4000}) == (10, 10)
    assert times({"bulk": 0, own["large"]: 2000, own["small"]: 2000}) == (0, 10)
    assert times({"bulk": 4000, own["large"]: 2000, own["small"]: 2000}) == (10, 20)
    assert times({"bulk": 400, own["small"]: 2000}) == (1, 10)
    # Of the mixed Lane 3600 tokens are of rows that only the large one takes.
    assert times({"bulk": 4000, own["large"]: 400}, make_kind(16384, 3600)) == (18, 20)
    assert times({"bulk": 4000}, make_kind(4096, 3600)) == (10, 10)
    # Nobody takes these: as if one did.
    assert times({"bulk": 4000}, make_kind(65536, 4000))[1] == pytest.approx(4000 / (400 / 3))
    # Those that do others shall not do these as well.
    nobodys, only_large = make_kind(65536, 2000), make_kind(16384, 3600)
    assert times({"bulk": 5600}, nobodys, only_large)[1] == 18
    assert times({"bulk": 400, "pool-of-old": 3600}) == (1, 10)


def test_a_worker_of_another_revision_under_the_same_name_is_unfit_and_counts_for_nothing(
    mill: Mill,
) -> None:
    mill.submit("acme", "one", num_jobs=16)
    announce(mill.bench, "wrk-1", WorkerState.READY, busy_tokens_per_s=250.0)
    other = replace(PIN, revision="other")
    announce(mill.bench, "wrk-2", WorkerState.READY, busy_tokens_per_s=9e9, model=other)
    found = look(mill.bench)
    mill.run(60)
    idle = look(mill.bench)

    assert (found["workers", "fake", "ready"], found["workers", "fake", "unfit"]) == (1, 1)
    assert found["backlog_model_seconds", "fake"] == found["backlog_seconds", "bulk", "fake"] == 32
    assert idle["workers", "fake", "unfit"] == 0  # nothing is left that it could not do


def test_a_worker_with_another_version_of_an_adapter_counts_for_its_model_alone(
    mill: Mill,
) -> None:
    label = f"fake-legal@{'0' * 32}"
    announce(mill.bench, "wrk-1", WorkerState.READY, busy_tokens_per_s=250.0, adapters=(label,))
    asked_for = replace(PIN, name="fake-legal", revision=f"{PIN.revision}+{'1' * 32}")
    with patch.object(backlog, "list_models", lambda conn: [PIN, asked_for]):
        found = look(mill.bench)
    with mill.bench.ledger.read() as conn:
        known = workers.list_workers(conn)
    unfit = {pin for pin in known[0].card.pins if pin.adapter}
    speeds = WorkerSpeeds(known, mill.bench.control.now, assumed=1.0, unfit=unfit)

    assert (found["workers", "fake", "ready"], found["workers", "fake", "unfit"]) == (1, 0)
    assert found["workers", "fake-legal", "unfit"] == 1
    assert [speeds.num_alive("bulk", name) for name in ("fake", "fake-legal")] == [1, 0]
    assert [speeds.of_one("bulk", name) for name in ("fake", "fake-legal")] == [250, 1]


def test_workers_that_are_not_heard_of_are_lost_and_those_that_ended_are_none(bench: Bench) -> None:
    announce(bench, "wrk-1", WorkerState.READY)
    announce(bench, "wrk-2", WorkerState.ENDED)
    bench.clock.advance(46)
    announce(bench, "wrk-3", WorkerState.DRAINING)
    found = look(bench)

    states = ("loading", "ready", "draining", "lost")
    assert [found["workers", "fake", state] for state in states] == [0, 0, 1, 1]


def test_a_model_that_is_served_has_a_backlog_of_nothing(bench: Bench) -> None:
    """An autoscaler that finds no value knows nothing; one that finds 0 scales down."""
    now = bench.control.now
    with bench.ledger.write() as conn:
        models.tell(conn, ServedModel("fake", "r", (), 512, now, now))
    found = look(bench)

    assert found["backlog_tokens", "bulk", "fake"] == 0
    assert found["backlog_worker_seconds", "bulk", "fake"] == 0
    assert found["workers", "fake", "ready"] == 0


def test_batches_are_counted_by_status_without_tenants(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=4)
    mill.bench.clock.advance(100)
    mill.submit("other", "two", num_jobs=4)
    found = look(mill.bench)

    assert found["batches", "in_progress"] == 2 and found["batches", "validating"] == 0
    assert found["oldest_batch_seconds", "in_progress"] == 100
    assert not {"acme", "other", "one", "two"} & {word for key in found for word in key}


def test_a_million_tokens_cost_what_those_of_today_did(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=8, prompt_tokens=300, answer_tokens=100)
    mill.run(20)
    found = look(mill.bench, prices=PriceTable({"*": PRICE}, "EUR"))

    assert found["cost_per_million_tokens", "fake", "EUR"] == pytest.approx((3 * 1 + 1 * 3) / 4)
    assert not any("cost" in key[0] for key in look(mill.bench))


def test_while_the_ledger_is_away_there_are_no_values_rather_than_old_ones(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    mill.submit("acme", "one", num_jobs=4)
    now, tally = 0.0, Tally(Process.CONTROL)
    gauges = LedgerGauges(mill.bench.control, tally, monotonic=lambda: now)
    tally.on_look(gauges.put)

    def names() -> set[str]:
        return {series.metric.name for series in tally.look() if series.values}

    def away() -> None:
        raise StoreError("away")

    first = names()
    monkeypatch.setattr(type(mill.bench.ledger), "read", lambda self: away())
    soon = names()
    now = 6.0
    later = names()

    assert "gristmill_batches" in first and soon == first
    assert later == set()
