"""The Router: never a Lane whose workers cannot, no work left lying, the same answer every time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_cases import FEATURES, NOW, A, B, lane, needs, send, worker

from gristmill.fleet import KnownWorker, WorkerState
from gristmill.queues.base import BULK_LANE
from gristmill.router import Fleet, Load, Needs, ToLane, fleet_of

limits = st.sampled_from([300, 512, 700, 1024, 1500, 2048, 6000, 8192])
rates = st.one_of(st.none(), st.floats(1.0, 1e5))
workers = st.builds(
    worker,
    limits,
    model=st.sampled_from([A, B]),
    features=st.sampled_from([FEATURES, ("generate",), ("generate", "grammar")]),
    prefill=rates,
    decode=rates,
    state=st.sampled_from([WorkerState.READY, WorkerState.READY, WorkerState.DRAINING]),
    heard_s_ago=st.sampled_from([0.0, 0.0, 0.0, 100.0]),
)
fleets = st.lists(workers, max_size=8)
wanted = st.builds(
    needs,
    st.integers(1, 9000),
    model=st.sampled_from([A, B]),
    features=st.sampled_from([("generate",), ("generate", "logprobs")]),
    prompt=st.integers(0, 50_000),
    expected=st.integers(0, 100_000),
)


def lanes_of(fleet: Fleet) -> list[str]:
    return [BULK_LANE, *(pool.lane for pool in fleet.pools)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[KnownWorker], Needs, Load]:
    found = draw(fleets)
    names = lanes_of(fleet_of(found, NOW))
    sent = draw(st.dictionaries(st.sampled_from(names), st.floats(0, 1e7)))
    full = draw(st.sets(st.sampled_from(names)))
    return found, draw(wanted), Load(sent, draw(st.floats(0, 1e8)), frozenset(full))


def able(one: KnownWorker, asked: Needs, row_tokens: int) -> bool:
    card = one.card
    return (
        one.state_at(NOW) is WorkerState.READY
        and card.model.revision == asked.model.revision
        and card.max_row_tokens >= row_tokens
        and asked.features <= set(card.features)
    )


@given(cases())
def test_a_lane_is_never_chosen_whose_workers_cannot(
    case: tuple[list[KnownWorker], Needs, Load],
) -> None:
    found, asked, load = case
    to = send(asked, *found, load=load)
    ready = [one for one in found if one.state_at(NOW) is WorkerState.READY]
    if not isinstance(to, ToLane) or not ready:
        return

    listeners = [one for one in ready if to.lane in one.card.lanes]

    if to.lane == BULK_LANE:
        assert all(able(one, asked, to.row_tokens) for one in listeners)
    else:
        # Where only some of a pool can, it is because no pool is there of which all can.
        assert any(able(one, asked, to.row_tokens) for one in listeners)
        if not all(able(one, asked, to.row_tokens) for one in listeners):
            for pool in fleet_of(found, NOW).pools:
                of_pool = [one for one in ready if lane(one) == pool.lane]
                assert not all(able(one, asked, to.row_tokens) for one in of_pool)


@given(cases())
def test_work_goes_somewhere_as_long_as_anybody_can(
    case: tuple[list[KnownWorker], Needs, Load],
) -> None:
    found, asked, load = case
    to = send(asked, *found, load=load)
    known = [
        one
        for one in found
        if able(
            replace(one, heard_at=NOW, beat=replace(one.beat, state=WorkerState.READY)), asked, 0
        )
    ]
    reach = max((one.card.max_row_tokens for one in known), default=0)
    can_now = any(able(one, asked, min(asked.max_row_tokens, reach)) for one in found)

    if can_now and asked.least_row_tokens <= reach:
        assert isinstance(to, ToLane)


@given(cases())
def test_with_enough_to_do_a_lane_with_room_goes_before_one_that_is_full(
    case: tuple[list[KnownWorker], Needs, Load],
) -> None:
    found, asked, load = case
    to = send(asked, *found, load=replace(load, waiting_tokens=1e15))
    pools = fleet_of(found, NOW).pools
    if not isinstance(to, ToLane) or to.lane not in load.full or not pools:
        return

    # Of the mixed Lane it is enough that messages wait there: no listener is idle.
    if to.lane != BULK_LANE:
        able_pools = {pool.lane for pool in pools if pool.can_run(asked, to.row_tokens)}
        assert able_pools <= load.full, "no pool that can run it is left idle"
        assert BULK_LANE in load.full or not all(
            pool.can_run(asked, to.row_tokens) for pool in pools
        )


@given(cases(), st.randoms(use_true_random=False))
def test_the_same_question_has_the_same_answer(
    case: tuple[list[KnownWorker], Needs, Load], random: object
) -> None:
    found, asked, load = case
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    first, second = send(asked, *found, load=load), send(asked, *shuffled, load=load)

    if isinstance(first, ToLane) and isinstance(second, ToLane):
        assert first.lane == second.lane
        assert first.finish_at == pytest.approx(second.finish_at)
    else:
        assert first == second


@given(cases(), st.floats(1.0, 1e9), st.data())
def test_more_work_ahead_on_a_lane_never_draws_more_there(
    case: tuple[list[KnownWorker], Needs, Load], more: float, data: st.DataObject
) -> None:
    found, asked, load = case
    before = send(asked, *found, load=load)
    name = data.draw(st.sampled_from(lanes_of(fleet_of(found, NOW))))
    sent = {**load.sent_tokens, name: load.sent_tokens.get(name, 0.0) + more}

    after = send(asked, *found, load=replace(load, sent_tokens=sent))

    if isinstance(before, ToLane) and isinstance(after, ToLane) and before.lane != name:
        assert after.lane != name
