"""Properties of the policy of turns: even shares, nobody starves or hoards, deadlines are met."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.control.fair_share import (
    SPARE_S,
    URGENT_IN_A_ROW,
    Demand,
    FairShare,
    find_urgent_until,
    is_hopeless,
)

TENANTS = "abcdefgh"
MAX_LEAD = 5_000
finished_counts = st.dictionaries(
    st.sampled_from(TENANTS), st.none() | st.integers(0, 10**6), min_size=1
)
costs = st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 1000))


@given(finished_counts, st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.integers(0))
def test_no_tenant_with_work_is_ever_more_than_a_shard_behind_another(
    finished: dict[str, int | None], sizes: list[int], level: int
) -> None:
    turns = FairShare(level, finished, {}, max_lead=MAX_LEAD)
    before = {tenant: turns.standing(tenant) for tenant in finished}
    served: Counter[str] = Counter()

    for size in sizes:
        tenant = turns.order()[0]
        served[tenant] += size
        turns.charge(tenant, size)

    # Whoever was served stood lowest just before its last Shard.
    for tenant, num_tokens in served.items():
        assert before[tenant] + num_tokens - max(sizes) <= min(map(turns.standing, finished))


@given(finished_counts, costs, st.integers(0, 10**6))
def test_who_comes_back_stands_at_the_level_and_nobody_is_far_ahead_of_it(
    finished: dict[str, int | None], under_way: dict[str, int], level: int
) -> None:
    turns = FairShare(level, finished, under_way, max_lead=MAX_LEAD)

    assert turns.level >= level
    for tenant, count in finished.items():
        without = turns.standing(tenant) - under_way.get(tenant, 0)
        assert turns.level <= without <= turns.level + MAX_LEAD
        if count is None or count <= level:
            assert without == max(level, turns.level)
        assert turns.moved.get(tenant, 0) == without - (count or 0)


def test_a_tenant_that_was_idle_gets_its_share_and_no_more() -> None:
    """A day of another's work earns it nothing."""
    turns = FairShare(1_000_000, {"busy": 1_000_000, "idle": 3}, {}, max_lead=MAX_LEAD)

    served = Counter()
    for _ in range(100):
        tenant = turns.order()[0]
        turns.charge(tenant, 100)
        served[tenant] += 1

    assert served == {"busy": 50, "idle": 50}


def test_a_tenant_whose_deadlines_went_first_waits_a_bounded_time() -> None:
    turns = FairShare(0, {"hurried": 10**9, "patient": 0}, {}, max_lead=MAX_LEAD)
    served = []
    for _ in range(MAX_LEAD // 100 + 2):
        served.append(turns.order()[0])
        turns.charge(served[-1], 100)

    assert "hurried" in served


@given(costs, costs)
def test_what_is_under_way_counts_and_a_wrong_guess_costs_nothing_for_good(
    guessed: dict[str, int], actual: dict[str, int]
) -> None:
    """Only what was finished is kept; the guess is gone as soon as the Shard is done."""
    finished: dict[str, int | None] = dict.fromkeys(TENANTS, 0)
    ahead = FairShare(0, finished, guessed, max_lead=MAX_LEAD)
    done = {tenant: actual.get(tenant, 0) for tenant in TENANTS}
    after = FairShare(ahead.level, done, {}, max_lead=MAX_LEAD)

    assert {t: ahead.standing(t) for t in TENANTS} == {t: guessed.get(t, 0) for t in TENANTS}
    assert {t: after.standing(t) for t in TENANTS} == done


def test_deadlines_matter_only_when_they_get_close() -> None:
    due = [Demand(1000, 100_000), Demand(5000, 100_000)]

    def urgent_at(now: float) -> float | None:
        return find_urgent_until(due, now=now, tokens_per_s=400)

    # At 350 tokens/s the first takes 286 s, and 10 % of what is left is to spare.
    assert urgent_at(0) is None
    assert urgent_at(600) is None
    assert urgent_at(700) == 1000
    assert find_urgent_until(due, now=0, tokens_per_s=0) is None


def test_a_heap_of_work_that_is_due_much_later_is_urgent_early() -> None:
    due = [Demand(10_000 + i, 10_000) for i in range(100)]

    assert find_urgent_until(due, now=0, tokens_per_s=200) is None
    assert find_urgent_until(due, now=0, tokens_per_s=120) == 10_099


def test_what_cannot_be_met_by_far_is_not_worth_hurrying_for() -> None:
    hopeless, met = Demand(100, 10**9), Demand(400, 30_000)

    assert is_hopeless(hopeless, now=0, tokens_per_s=100)
    assert not is_hopeless(met, now=0, tokens_per_s=100)
    assert find_urgent_until([hopeless], now=0, tokens_per_s=100) is None
    assert find_urgent_until([hopeless, met], now=0, tokens_per_s=100) == 400
    assert find_urgent_until([Demand(0, 1), Demand(-5, 1)], now=0, tokens_per_s=100) is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 300)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_every_deadline_that_can_be_met_is_met(
    asked: list[tuple[str, int, int]], num_backlogs: int
) -> None:
    """A Shard takes a second. `asked` has a tenant, Shards, and seconds to spare; others have work
    without end. Each deadline is feasible: behind all earlier ones, at 7/8 of the speed."""
    work, left, due = 0, {}, {}
    for i, (tenant, num_shards, spare_s) in enumerate(asked):
        work += num_shards
        left[tenant, i] = num_shards
        due[tenant, i] = work * (URGENT_IN_A_ROW + 1) / URGENT_IN_A_ROW + spare_s + 10
    due = dict(zip(left, sorted(due.values()), strict=True))
    finished: dict[str, int | None] = {f"backlog {i}": 0 for i in range(num_backlogs)}
    level, num_urgent, ended = 0, 0, {}

    for now in range(2000):
        if not left:
            break
        finished |= {tenant: finished.get(tenant) for tenant, _ in left}
        turns = FairShare(level, finished, {}, max_lead=10**9)
        demands = [Demand(due[key], num_shards) for key, num_shards in left.items()]
        until = find_urgent_until(demands, now=now, tokens_per_s=1.0)
        first = min(left, key=due.__getitem__)
        if until is not None and due[first] <= until and num_urgent < URGENT_IN_A_ROW:
            tenant, key, num_urgent = first[0], first, num_urgent + 1
        else:
            tenant, num_urgent = turns.order()[0], 0
            key = min((k for k in left if k[0] == tenant), key=due.__getitem__, default=None)
        finished |= {t: (finished[t] or 0) + by for t, by in turns.moved.items()}
        finished[tenant] = turns.standing(tenant) + 1
        level = turns.level
        if key is not None:
            left[key] -= 1
            if not left[key]:
                del left[key]
                ended[key] = now + 1
        finished = {t: n for t, n in finished.items() if " " in t or any(k[0] == t for k in left)}

    assert SPARE_S > 10
    assert {key for key in due if ended.get(key, 10**9) > due[key]} == set()
