"""Which pools run out of work first, and what others leave to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from router_cases import NOW, B, lane, needs, send, worker

from gristmill.fleet import KnownWorker
from gristmill.router import Load, Needs, ToLane, fleet_of
from gristmill.short_pools import WaitingKind, find_short

#: A Shard of the short rows takes 22 s on the small one and 2.2 s on the large one.
SMALL = worker(512, prefill=1000.0, decode=100.0)
LARGE = worker(8192, prefill=10_000.0, decode=1000.0)
SHORT, LONG = needs(300), needs(5000)


def short_of(*waiting: tuple[Needs, int], fleet: tuple[KnownWorker, ...]) -> frozenset[str]:
    kinds = [WaitingKind(one, num * one.num_expected_tokens) for one, num in waiting]
    return find_short(kinds, fleet_of(fleet, NOW))


def test_a_pool_is_short_when_its_work_ends_before_what_only_others_can_do() -> None:
    fleet = (SMALL, LARGE)

    assert short_of((SHORT, 9), (LONG, 100), fleet=fleet) == {lane(SMALL)}
    assert short_of((SHORT, 11), (LONG, 100), fleet=fleet) == frozenset()
    assert short_of((SHORT, 11), (LONG, 100), fleet=(SMALL, *fleet)) == {lane(SMALL)}, "shared"
    assert short_of((SHORT, 9), (LONG, 100), fleet=(*fleet, LARGE, LARGE)) == frozenset()


def test_without_anything_that_it_cannot_do_or_without_measures_no_pool_is_short() -> None:
    unmeasured = worker(512)

    assert short_of((SHORT, 1), fleet=(SMALL, LARGE)) == frozenset()
    assert short_of((SHORT, 1), (LONG, 100), fleet=(unmeasured, LARGE)) == frozenset()
    assert short_of((needs(100), 1), (SHORT, 100), fleet=(SMALL, LARGE)) == frozenset()


def test_work_of_another_model_makes_no_pool_short() -> None:
    other = worker(8192, model=B, prefill=1000.0, decode=100.0)
    of_other = needs(5000, model=B)

    assert short_of((SHORT, 1), (of_other, 100), fleet=(SMALL, other)) == frozenset()
    assert short_of((SHORT, 1), (LONG, 20), (of_other, 1), fleet=(SMALL, LARGE, other)) == {
        lane(SMALL)
    }


def test_what_is_left_to_a_pool_that_is_short_goes_last_on_others_and_else_the_shortest_first() -> (
    None
):
    longer = needs(5000, expected=8000)

    def rank(asked: Needs, short: frozenset[str]) -> tuple[bool, float]:
        full = frozenset({lane(SMALL), "bulk"})
        found = send(asked, SMALL, LARGE, load=Load({}, 0.0, full, short))
        assert isinstance(found, ToLane) and found.lane == lane(LARGE)
        return found.rank

    none, small = frozenset[str](), frozenset({lane(SMALL)})
    assert rank(SHORT, none) == rank(LONG, none) < rank(longer, none), "as many tokens a row"
    assert rank(LONG, small) < rank(longer, small) < rank(SHORT, small)


def test_where_a_model_has_one_kind_of_machine_all_rank_alike() -> None:
    other = worker(512, model=B)
    found = [send(needs(row), LARGE, other) for row in (10, 5000)]

    assert [one.rank for one in found if isinstance(one, ToLane)] == [(False, 0.0)] * 2


@given(
    st.lists(st.tuples(st.sampled_from([100, 300, 1500, 5000]), st.integers(1, 50)), max_size=6),
    st.integers(1, 50),
)
def test_more_of_what_a_pool_can_do_never_makes_it_short(
    waiting: list[tuple[int, int]], more: int
) -> None:
    medium = worker(2048, prefill=3000.0, decode=300.0)
    fleet = (SMALL, medium, medium, LARGE)
    before = short_of(*((needs(row), num) for row, num in waiting), fleet=fleet)

    after = short_of(*((needs(row), num) for row, num in (*waiting, (300, more))), fleet=fleet)

    assert after <= before
    assert lane(LARGE) not in before, "it can do everything"
    if not any(row > 2048 for row, _ in waiting):
        assert lane(medium) not in before
