"""A simulated fleet does each row once, the same each time, and as reckoned by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleet import LONG, MACHINE, SHORT, batch, scenario, simulate

from gristmill.errors import UsageError
from gristmill.pools import Fleet
from gristmill.simulator.costs import Costs
from gristmill.simulator.policies import POLICIES, Router
from gristmill.simulator.scenarios import SCENARIOS, SMALL_GPU, Death
from gristmill.simulator.simulate import Simulation
from gristmill.simulator.work import Lengths, RowKind

BIG = replace(MACHINE, name="big", max_num_seqs=8, kv_tokens=8192)
SMALL = replace(MACHINE, name="small", max_row_tokens=600, kv_tokens=1024)
FIXED = RowKind(Lengths(100), Lengths(3), 8)


class Seen:
    """Which rows were done, and by whom."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[str, int]] = Counter()
        self.workers: dict[tuple[str, int], str] = {}

    def __call__(self, spec: Any, seq: Any, worker: Any) -> None:
        self.rows[spec.id, seq.row.idx] += 1
        self.workers[spec.id, seq.row.idx] = worker.machine.name

    def is_each_once(self, *specs: Any) -> bool:
        wanted = {(spec.id, idx) for spec in specs for idx in range(spec.num_rows)}
        return self.rows == Counter(dict.fromkeys(wanted, 1))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fleet_of_one_takes_as_long_as_its_engine(policy: str) -> None:
    figures = simulate(scenario(batch(num_rows=2, kinds=(FIXED,))), policy)

    # The first prompt fills a step of 100 tokens. The second one has 99 beside the first row's
    # second token, and its last beside the third; then it decodes two more.
    assert figures.seconds == pytest.approx(0.5)
    assert figures.rows_per_s == pytest.approx(4.0)
    assert figures.is_complete


def test_costs_are_charged() -> None:
    base = scenario(batch(num_rows=2, kinds=(FIXED,)))
    costs = replace(
        base.costs,
        ingest_row_s=0.5,
        dispatch_round_s=0.25,
        dispatch_shard_s=0.25,
        accept_round_s=0.75,
        accept_segment_s=0.25,
        accept_row_s=0.5,
        wake_s=0.1,
        fetch_s=0.1,
        open_s=0.1,
        close_s=0.1,
    )

    figures = simulate(replace(base, costs=costs))

    # Reading 1.0, dispatch 0.5, message, fetch and open 0.1 each. The open mark takes the control
    # side 1.0, in which the engine's 0.5 and the last store's 0.1 go by; then a Segment, two rows.
    assert figures.seconds == pytest.approx(1.0 + 0.5 + 0.3 + 1.0 + 2.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_figures(policy: str) -> None:
    made = scenario(
        batch("a", num_rows=60, kinds=(SHORT, LONG)),
        batch("b", num_rows=40, at=3.0, tenant="other", due_in_s=30.0),
        fleet=((BIG, 2), (SMALL, 3)),
        deaths=(Death(5.0, 0),),
        costs=Costs(),
    )

    assert simulate(made, policy) == simulate(made, policy)
    other = replace(made, trace=replace(made.trace, seed=2))
    assert simulate(other, policy) != simulate(made, policy)


@st.composite
def scenarios(draw: st.DrawFn) -> Any:
    specs = [
        batch(
            f"b{i}",
            num_rows=draw(st.integers(1, 40)),
            at=draw(st.floats(0, 20)),
            tenant=draw(st.sampled_from("xyz")),
            kinds=draw(st.sampled_from([(SHORT,), (LONG,), (SHORT, LONG)])),
            due_in_s=draw(st.sampled_from([None, 10.0, 100.0])),
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    num_big, num_small = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    # One big machine lives on, so that all can be done.
    mortals = st.integers(1, num_big + num_small - 1) if num_big + num_small > 1 else None
    deaths = ()
    if mortals is not None:
        found = draw(st.dictionaries(mortals, st.floats(0.1, 40), max_size=4))
        deaths = tuple(Death(at, worker) for worker, at in found.items())
    return specs, scenario(
        *specs,
        fleet=((BIG, num_big), (SMALL, num_small)),
        deaths=deaths,
        seed=draw(st.integers(0, 99)),
        shard_max_jobs=draw(st.integers(1, 12)),
        costs=draw(st.sampled_from([Costs(), scenario().costs])),
    )


@given(made=scenarios(), policy=st.sampled_from(sorted(POLICIES)))
@settings(max_examples=60, deadline=None)
def test_every_row_is_done_once_whoever_dies(made: Any, policy: str) -> None:
    specs, of_specs = made
    seen = Seen()

    figures = simulate(of_specs, policy, observer=seen)

    assert figures.is_complete
    assert seen.is_each_once(*specs)


def test_rows_that_a_machine_cannot_hold_never_reach_it() -> None:
    seen, spec = Seen(), batch(num_rows=50, kinds=(SHORT, LONG))
    made = scenario(spec, fleet=((BIG, 1), (SMALL, 2)), shard_max_jobs=4)

    simulate(made, "fifo", observer=seen)

    longest = {row.idx: row.num_tokens for window in spec.windows(1) for row in window}
    by_small = [idx for (_, idx), name in seen.workers.items() if name == "small"]
    assert by_small
    assert max(longest[idx] for idx in by_small) <= SMALL.max_row_tokens


def test_work_of_a_worker_that_dies_goes_on_from_its_checkpoint() -> None:
    long_answers = RowKind(Lengths(50), Lengths(100), 100)
    made = scenario(batch(num_rows=2, kinds=(long_answers,)), fleet=((MACHINE, 2),))
    undisturbed = simulate(made)
    killed = simulate(replace(made, deaths=(Death(6.05, 0),)))

    # 100 tokens at 0.1 s. Killed after 6.05 s, with 60 tokens, of which 59 were stored after 6.0 s;
    # then its Lease was renewed too, for 8 s. Then 218 tokens of prefill, three steps, and the rest
    # of the tokens, a step each.
    assert undisturbed.seconds == pytest.approx(10.0)
    assert killed.seconds == pytest.approx(14.0 + 0.3 + 4.0)
    assert killed.num_rows_again == 2


def test_what_was_sent_to_a_pool_that_dies_is_done_by_another_though_nothing_waits() -> None:
    times = 4
    fast = replace(
        BIG,
        name="fast",
        prefill_tokens_per_s=tuple((n, times * rate) for n, rate in BIG.prefill_tokens_per_s),
        decode_tokens_per_s=times * BIG.decode_tokens_per_s,
    )
    specs = [batch(f"b{i}", num_rows=100, at=10.0 * i, kinds=(FIXED,)) for i in range(4)]
    made = scenario(*specs, fleet=((fast, 1), (BIG, 1)), shard_max_jobs=5)

    for died_at in (30.2, 30.5, 31.0):
        assert simulate(replace(made, deaths=(Death(died_at, 0),))).is_complete


def test_the_router_knows_speeds_as_the_newest_beat_told_them() -> None:
    heard: list[tuple[float, float]] = []

    class Listening(Router):
        def next_shards(self, backlog: Any, fleet: Fleet, room: Any, *, now: float) -> Any:
            of_pool = fleet.pools[0].prefill_tokens_per_s
            heard.append((now, of_pool[0][1] if of_pool else 0.0))
            return super().next_shards(backlog, fleet, room, now=now)

    Simulation(scenario(batch(num_rows=200), shard_max_jobs=4), Listening()).run()

    told_at = [heard[i][0] for i in range(1, len(heard)) if heard[i][1] != heard[i - 1][1]]
    assert min(at for at, speed in heard if speed) >= 10
    assert len(told_at) > 3
    assert len({int(at // 10) for at in told_at}) == len(told_at)


def test_a_fleet_that_is_all_dead_leaves_rows_undone() -> None:
    figures = simulate(scenario(batch(num_rows=50), deaths=(Death(1.0, 0),)))

    assert not figures.is_complete
    assert figures.num_rows < 50


def test_deadlines_are_kept_where_a_plain_queue_misses_them() -> None:
    made = scenario(
        batch("backlog", num_rows=400, kinds=(FIXED,), due_in_s=10_000.0),
        batch("burst", num_rows=20, kinds=(FIXED,), at=5.0, tenant="hurried", due_in_s=30.0),
        shard_max_jobs=5,
    )

    assert simulate(made, "fifo").num_late == 1
    assert simulate(made, "router").num_late == 0


def test_a_row_that_no_machine_can_hold_is_refused_before_anything_runs() -> None:
    too_long = RowKind(Lengths(5000), Lengths(5), 10)

    with pytest.raises(UsageError, match=r"5,010 tokens.*takes 4,096"):
        simulate(scenario(batch(kinds=(too_long,))))


def test_equal_machines_scale() -> None:
    kind = RowKind(Lengths(300, 0.5), Lengths(30), 64)

    def rate(num_workers: int) -> float:
        spec = batch(num_rows=800 * num_workers, kinds=(kind,))
        made = scenario(spec, fleet=((SMALL_GPU, num_workers),), costs=Costs(), shard_max_jobs=32)
        return simulate(made).rows_per_s

    assert rate(16) >= 0.85 * 16 * rate(1)


def test_scenarios_that_come_with_the_program_are_fixed_by_their_seed() -> None:
    for make in SCENARIOS.values():
        assert make() == make()
        spec = make().trace.batches[0]
        assert next(spec.windows(1)) == next(spec.windows(1))
