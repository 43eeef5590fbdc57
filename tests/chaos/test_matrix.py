"""Each crash point, each way to break there: the batch ends with each row exactly once."""

from __future__ import annotations

from uuid import uuid4

import pytest
from arena import Arena, shared_nursery
from checker import check
from local_run import make_line
from matrix import CASES, Case, survive
from pipeline import fast_folder
from redis_server import shared_server
from traces import Report

from gristmill.crash_points import EXIT_CODE

#: One of each kind, for every run of the tests; all of them are many minutes.
SAMPLE = [
    Case("worker", "stored", "exit"),
    Case("worker", "storing", "freeze", 2),
    Case("worker", "ringing", "fail"),
    Case("control", "accepting", "exit", 2),
    Case("control", "slice-merged", "raise"),
]


def run(case: Case) -> Report:
    queue_url = f"{shared_server('redis6').url}?prefix=test-{uuid4().hex}"
    with fast_folder() as folder:
        return survive(case, shared_nursery(), queue_url, folder / "arena")


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.plan)
def test_a_batch_survives_what_happens_at_a_crash_point(case: Case) -> None:
    assert run(case).violations == []


def test_a_shard_that_two_workers_died_of_goes_on_row_by_row_to_its_end() -> None:
    queue_url = f"{shared_server('redis6').url}?prefix=test-{uuid4().hex}"
    with fast_folder() as folder:
        arena = Arena(folder / "arena", shared_nursery(), queue_url)
        arena.write(make_line(f"r{idx}") for idx in range(8))
        control = arena.start_control()
        for _ in range(2):
            assert arena.start_worker(plan="opened=exit").end() == EXIT_CODE
        arena.start_worker()
        ended = control.end()
        arena.close()

        report = check(arena.evidence())
        assert ended == 0 and report.violations == []
        assert (report.num_attempts, report.num_shards) == (3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.plan)
def test_a_batch_survives_what_happens_at_each_crash_point(case: Case) -> None:
    assert run(case).violations == []
