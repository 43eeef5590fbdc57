"""Who loads may take more than who is ready: whose answers are not cut yet, and for how long."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from router_cases import NOW, A, needs, send, worker

from gristmill.fleet import KnownWorker, WorkerState
from gristmill.loading import NO_LIMIT
from gristmill.pools import fleet_of
from gristmill.router import Never, ToLane, Waits, find_certain, find_limits, taken_row_tokens
from gristmill.row_limits import limit_of

SMALL = worker(512)
#: A row that may have more than any of these takes.
LONG = needs(1 << 20, least=100)


def loads(window: int, *, heard_s_ago: float = 0.0, for_s: float = 60.0, **of: str) -> KnownWorker:
    one = worker(window, state=WorkerState.LOADING, heard_s_ago=heard_s_ago, **of)  # type: ignore[arg-type]
    return replace(one, first_heard_at=NOW - for_s)


def cut_at(*workers: KnownWorker) -> int | None:
    """Where the answer of LONG ends now; None: it waits, or is sent for all that it may have."""
    found = send(LONG, *workers)
    assert not isinstance(found, Never)
    is_cut = isinstance(found, ToLane) and found.row_tokens < LONG.max_row_tokens
    return found.row_tokens if is_cut else None


def test_one_that_dies_whenever_it_loads_is_not_waited_for_after_the_third_time() -> None:
    died = [loads(8192, heard_s_ago=100.0 * n) for n in (1, 2, 3)]

    found = send(LONG, SMALL, *died[:2], loads(8192))

    assert isinstance(found, Waits)
    assert "one is loading, and 2 before it died while they did" in found.reason
    assert cut_at(SMALL, *died, loads(8192)) == 512
    # Another kind of machine has not failed, and one that was ready is known to be able to.
    assert cut_at(SMALL, *died, loads(8192), loads(4096)) is None
    assert cut_at(SMALL, *died, loads(8192), worker(8000, heard_s_ago=60, window=8192)) is None


def test_rows_that_only_such_a_one_could_run_are_refused() -> None:
    died = [loads(8192, heard_s_ago=100.0 * n) for n in (1, 2, 3)]

    assert isinstance(send(needs(6000), SMALL, *died[:2], loads(8192)), Waits)
    assert isinstance(send(needs(6000), SMALL, *died, loads(8192)), Never)


def test_one_that_loads_for_more_than_an_hour_is_not_waited_for() -> None:
    assert cut_at(SMALL, loads(8192, for_s=3000)) is None
    assert cut_at(SMALL, loads(8192, for_s=3700)) == 512


def test_a_loading_machine_of_another_device_may_take_more_in_the_same_window() -> None:
    """The KV cache of the small GPU holds less than the window; that of the large one may not."""
    ready = worker(2000, window=8192, device="cuda T4")

    assert cut_at(ready, loads(8192, device="cuda T4")) == 2000
    assert cut_at(ready, loads(8192, device="cuda H100")) is None


def test_when_the_first_worker_of_a_model_was_just_heard_of_a_larger_one_may_follow() -> None:
    fresh, settled = (replace(SMALL, first_heard_at=NOW - s) for s in (2.0, 6.0))

    found = send(LONG, fresh)

    assert isinstance(found, Waits) and "a larger one may follow" in found.reason
    assert cut_at(settled) == 512
    assert cut_at(settled, fresh) == 512, "the model was known before"
    assert find_limits(LONG, fleet_of([fresh], NOW)) == (512, 512)
    assert find_limits(LONG, fleet_of([settled], NOW)) == (NO_LIMIT, 512)


def test_while_nobody_takes_work_what_any_machine_takes_is_certain_and_no_more() -> None:
    none, loading = fleet_of([], NOW), fleet_of([loads(8192)], NOW)
    known = fleet_of([worker(8192, heard_s_ago=60)], NOW)

    for fleet in (none, loading):
        assert find_certain(LONG, fleet) == 1024
    assert find_certain(LONG, known) == NO_LIMIT, "it ends where that one does"
    assert find_certain(LONG, replace(none, max_row_tokens=8192)) == NO_LIMIT


sizes = st.sampled_from([300, 512, 1024, 1500, 6000, 8192])


@given(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=6), st.integers(1, 9000))
def test_who_is_ready_first_decides_nothing(fleet: list[tuple[int, bool]], row: int) -> None:
    """Of machines that are there or load: an answer is cut where it is when all are ready."""
    wanted = needs(row, least=1)
    now = [worker(size) if is_ready else loads(size) for size, is_ready in fleet]
    later = [worker(size) for size, _ in fleet]

    found = taken_row_tokens(wanted, fleet_of(now, NOW))

    assert found in (row, taken_row_tokens(wanted, fleet_of(later, NOW)))


@given(st.lists(st.integers(1, 9000)), st.integers(1, 9000), st.integers(1, 9000))
def test_a_limit_that_comes_later_changes_nothing_unless_it_is_lower(
    limits: list[int], least: int, new: int
) -> None:
    before = limit_of(least, limits)

    after = limit_of(least, [*limits, new])

    assert after == before or (after == new >= least and (before is None or new < before))


def test_another_models_machines_decide_nothing() -> None:
    other = replace(A, revision="another")

    assert (
        cut_at(
            SMALL,
            replace(loads(8192), beat=worker(8192, model=other, state=WorkerState.LOADING).beat),
        )
        == 512
    )
