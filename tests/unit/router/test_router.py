"""The Router: who can run what, where it is done first, and what it says of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from router_cases import NOW, A, B, lane, needs, send, worker

from gristmill.fleet import StepTime, WorkerState
from gristmill.queues.base import BULK_LANE
from gristmill.router import Fleet, Load, Never, Route, ToLane, Waits, fleet_of, is_served, route

SMALL, MEDIUM, LARGE = worker(512), worker(2048), worker(8192)


@pytest.mark.parametrize("row", [10, 5000])
def test_while_all_are_alike_or_nobody_is_there_all_goes_to_the_mixed_lane(row: int) -> None:
    for workers in ((), (LARGE,), (LARGE, LARGE), (worker(8192, heard_s_ago=60),)):
        found = send(needs(row), *workers)

        assert isinstance(found, ToLane) and found.lane == BULK_LANE


def test_a_row_goes_to_those_that_take_it_and_what_all_take_to_the_mixed_lane() -> None:
    for row, expected in ((300, BULK_LANE), (1500, lane(MEDIUM)), (5000, lane(LARGE))):
        found = send(needs(row), SMALL, MEDIUM, LARGE)

        assert isinstance(found, ToLane) and (found.lane, found.row_tokens) == (expected, row)


def test_a_row_that_may_have_more_than_anybody_takes_runs_only_where_most_is_taken() -> None:
    found = send(needs(100_000, least=200), SMALL, MEDIUM, LARGE)

    assert isinstance(found, ToLane) and (found.lane, found.row_tokens) == (lane(LARGE), 8192)

    gone = worker(8192, heard_s_ago=60)
    assert isinstance(send(needs(100_000, least=200), SMALL, MEDIUM, gone), Waits)


def test_what_only_a_machine_that_is_away_can_run_waits_for_it_and_says_so() -> None:
    found = send(needs(5000), SMALL, MEDIUM, worker(8192, heard_s_ago=90))

    assert isinstance(found, Waits)
    assert "takes rows of 5,000 tokens" in found.reason
    assert "last heard of 90 s ago" in found.reason and "take 2,048" in found.reason


def test_what_nobody_can_ever_run_is_told_with_its_numbers() -> None:
    found = send(needs(9000), SMALL, worker(8192, heard_s_ago=90))

    assert isinstance(found, Never) and found.code == "context_length_exceeded"
    assert "9,000" in found.reason and "8,192" in found.reason


def test_while_a_machine_of_the_model_loads_nobody_says_never() -> None:
    for loading in (worker(8192, state=WorkerState.LOADING), worker(0, state=WorkerState.LOADING)):
        found = send(needs(9000), SMALL, loading)

        assert isinstance(found, Waits) and "one is loading" in found.reason
    dead = worker(0, state=WorkerState.LOADING, heard_s_ago=60)
    assert isinstance(send(needs(9000), SMALL, dead), Never)


def test_an_answer_is_not_cut_by_who_is_ready_first_while_a_larger_one_loads() -> None:
    loading = worker(8192, state=WorkerState.LOADING)

    cold = send(needs(5000, least=100), loading)
    one_is_ready = send(needs(5000, least=100), SMALL, loading)
    longer_than_all = send(needs(20_000, least=100), loading)
    nobody = send(needs(5000, least=100))

    assert isinstance(cold, ToLane) and cold.row_tokens == 5000
    assert isinstance(one_is_ready, Waits) and "one is loading" in one_is_ready.reason
    assert isinstance(longer_than_all, ToLane) and longer_than_all.row_tokens == 20_000
    assert isinstance(nobody, ToLane) and nobody.row_tokens == 5000


def test_a_fleet_that_grows_does_not_wait_for_what_its_memory_never_held() -> None:
    """The model takes a million tokens, and the KV cache of each of these machines a few."""
    ready = worker(8192, window=1 << 20)
    loading = worker(1 << 20, state=WorkerState.LOADING)

    found = send(needs(1 << 20, least=100), ready, loading)

    assert isinstance(found, ToLane) and found.row_tokens == 8192


def test_what_the_operator_says_that_a_machine_takes_is_waited_for_and_nothing_longer() -> None:
    fleet = replace(fleet_of([SMALL, MEDIUM], NOW), max_row_tokens=8192)
    none = Fleet(max_row_tokens=8192)

    def found(row: int, least: int, fleet: Fleet) -> Route:
        return route(needs(row, least=least), fleet, Load(), now=NOW)

    waits = found(5000, 100, fleet)
    cold = found(5000, 100, none)
    assert isinstance(waits, Waits) and "the operator says" in waits.reason
    assert isinstance(found(2000, 100, fleet), ToLane)
    assert isinstance(cold, ToLane) and cold.row_tokens == 5000
    for of in (fleet, none):
        longer = found(9000, 9000, of)
        assert isinstance(longer, Never) and "8,192" in longer.reason


def test_features_are_needed_too() -> None:
    plain = worker(8192, features=("generate",))
    wanted = needs(features=("generate", "grammar"))

    only = send(wanted, plain)
    found = send(wanted, plain, LARGE)

    assert isinstance(only, Never) and only.code == "unsupported_feature"
    assert "generate, grammar" in only.reason
    assert isinstance(found, ToLane) and found.lane == lane(LARGE)
    assert isinstance(send(wanted, worker(8192, features=())), ToLane), "it did not say"


def test_work_of_a_model_waits_while_only_workers_of_another_are_there() -> None:
    alone = send(needs(), worker(8192, model=B))
    both = send(needs(), worker(8192, model=B), LARGE)

    assert isinstance(alone, Waits) and "model a" in alone.reason
    assert isinstance(both, ToLane) and both.lane == lane(LARGE)


def test_what_a_model_is_called_does_not_count() -> None:
    renamed = replace(A, name="other")

    assert isinstance(send(needs(model=renamed), LARGE), ToLane)


def test_long_prompts_are_kept_from_slow_machines_where_that_pays() -> None:
    slow = worker(8192, prefill=100.0, decode=10.0)
    fast = worker(8192, prefill=10_000.0, decode=1000.0, features=("generate",))

    found = send(needs(), slow, fast)

    assert isinstance(found, ToLane) and found.lane == lane(fast)
    assert found.finish_at == pytest.approx(NOW + 2.2)


def test_machines_of_two_kinds_that_take_the_same_rows_are_told_apart() -> None:
    slow = worker(8192, prefill=100.0, decode=10.0)
    fast = worker(8192, prefill=10_000.0, decode=1000.0, device="cuda H100")

    found = send(needs(), slow, slow, fast)
    alike = send(needs(), fast, replace(fast, heard_at=NOW - 1))

    assert isinstance(found, ToLane) and found.lane == lane(fast)
    assert isinstance(alike, ToLane) and alike.lane == BULK_LANE


def test_a_machine_is_chosen_by_the_rows_that_it_would_run_at_once_and_not_by_those_it_had() -> (
    None
):
    # It has had long rows, one at a time; of short ones its KV cache holds a hundred.
    gpu = worker(
        8192,
        prefill=3000.0,
        decode=16.0,
        step_time=StepTime(0.06, 0.0001, 5e-7),
        kv_tokens=36_000,
        device="cuda T4",
    )
    cpu = worker(
        8192, prefill=500.0, decode=280.0, step_time=StepTime(0.06, 0.0017, 5e-7), max_num_seqs=32
    )

    short = send(replace(needs(), num_jobs=20), gpu, cpu)

    assert isinstance(short, ToLane) and short.lane == lane(gpu)
    # Two thousand answer tokens of rows that have 150 at the middle of their answers, 64 at once.
    step_s = 0.06 + 64 * 0.0001 + 64 * 150 * 5e-7
    assert short.finish_at == pytest.approx(NOW + 2000 / 3000 + 2000 / 64 * step_s)


def test_the_mixed_lane_is_used_where_it_does_not_pay() -> None:
    one = worker(8192, prefill=1000.0, decode=100.0)
    other = worker(8192, prefill=1100.0, decode=105.0, features=("generate",))

    found = send(needs(), one, other)

    assert isinstance(found, ToLane) and found.lane == BULK_LANE


def test_near_the_end_a_slow_machine_is_left_idle_and_with_much_to_do_it_is_not() -> None:
    slow = worker(8192, prefill=100.0, decode=10.0)
    fast = worker(8192, prefill=10_000.0, decode=1000.0, features=("generate",))
    full = frozenset({lane(fast)})

    near_the_end = send(needs(), slow, fast, load=Load(full=full, waiting_tokens=5000))
    much = send(needs(), slow, fast, load=Load(full=full, waiting_tokens=10_000_000))

    assert isinstance(near_the_end, ToLane) and near_the_end.lane == lane(fast)
    assert isinstance(much, ToLane) and much.lane not in full


def test_whoever_was_not_measured_gets_work_to_be_measured_by() -> None:
    slow = worker(8192, prefill=100.0, decode=10.0)
    fast = worker(8192, prefill=1000.0, decode=100.0, features=("generate",))
    new = worker(8192, features=("generate", "grammar"))

    found = send(needs(), slow, fast, new, load=Load({lane(fast): 4000.0}))

    assert isinstance(found, ToLane) and found.lane == lane(new)


def test_whoever_was_not_measured_gets_about_a_shard_for_each_worker_and_no_more() -> None:
    slow = worker(8192, prefill=100.0, decode=10.0)
    fast = worker(8192, prefill=1000.0, decode=100.0, features=("generate",))
    new = worker(8192, features=("generate", "grammar"))
    full = frozenset({BULK_LANE})

    def found(sent_to_new: float) -> str:
        load = Load({lane(new): sent_to_new, lane(fast): 12_000.0}, full=full)
        sent = send(needs(), slow, fast, new, new, load=load)
        assert isinstance(sent, ToLane)
        return sent.lane

    assert found(4000.0) == lane(new), "one of two has a Shard"
    assert found(8000.0) == lane(fast), "they may be the slowest"


def test_a_worker_that_listens_to_the_mixed_lane_only_is_sent_nothing_elsewhere() -> None:
    shy = worker(8192, lanes=(BULK_LANE,))

    alone, found = send(needs(5000), shy), send(needs(5000), SMALL, shy)

    assert isinstance(alone, ToLane) and alone.lane == BULK_LANE
    assert isinstance(found, ToLane) and found.lane == BULK_LANE, "others give it back"
    fleet = fleet_of([SMALL, shy], NOW)
    assert is_served(needs(5000), fleet, BULK_LANE)
    assert not is_served(needs(5000), fleet, lane(SMALL))
