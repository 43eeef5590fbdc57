"""Whatever befalls a small installation, DESIGN section 5 holds; and what breaks it is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from small_world import run_world

from gristmill.control import accept
from gristmill_worker import intake
from gristmill_worker.segments import ShardProgress


def test_whatever_happens_each_row_has_one_line_and_no_token_is_decoded_twice() -> None:
    for seed in range(2):
        world = run_world(seed, num_actions=120)

        assert world.happened["lull"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 20))
def test_whatever_happens_in_many_worlds(first: int) -> None:
    for seed in range(first, first + 20):
        assert run_world(seed).happened["lull"] == 1


def counts_twice(segment: Any, accepted: Any, num_jobs: int) -> Iterator[Any]:
    for result in segment.results:
        accepted.add(result.job_idx)
        yield result


def begins_anew(*args: Any) -> ShardProgress:
    return replace(READ(*args), generated={})


def condemns_the_shard(*args: Any, num_jobs: int, **kwargs: Any) -> Any:
    verdict = JUDGE(*args, num_jobs=num_jobs, **kwargs)
    whole = frozenset(range(num_jobs))
    return replace(verdict, condemned=whole) if verdict.is_isolated else verdict


READ, JUDGE = intake.read_shard_progress, intake.judge
PLANTED = {
    "a result counts twice": (accept, "new_results", counts_twice),
    "an attempt begins anew": (intake, "read_shard_progress", begins_anew),
    "poison condemns those beside it": (intake, "judge", condemns_the_shard),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", PLANTED)
def test_what_breaks_a_rule_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[what])

    with pytest.raises(AssertionError):
        for seed in range(40):
            run_world(seed)
