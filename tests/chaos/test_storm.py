"""A short storm, and what takes longer: all places, kills, a long life, memory, a real model."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from arena import ENDED, Arena, shared_nursery, wait_for
from checker import check
from local_run import make_line
from measured import a_large_batch, a_long_life, one_signal_now_and_then
from pipeline import fast_folder
from redis_server import RedisProcess
from storms import LEASE_S, peaceful_run, storm
from weather import PLACES


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


def test_a_short_storm_changes_nothing(folder: Path) -> None:
    peace, undisturbed = peaceful_run(shared_nursery(), folder / "peace", 300)

    report = storm(
        "Redis + folder",
        shared_nursery(),
        folder / "storm",
        input=peace,
        undisturbed=undisturbed,
        seed=20261130,
        pause_s=0.25,
        num_faults=12,
        step_s=0.04,
    )

    assert report.num_rows == 300 and report.violations == []
    assert report.num_faults.total() >= 8


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_changes_nothing(folder: Path, place: str, seed: int) -> None:
    peace, undisturbed = peaceful_run(shared_nursery(), folder / "peace", 2000)

    report = storm(
        place,
        shared_nursery(),
        folder / "storm",
        input=peace,
        undisturbed=undisturbed,
        seed=seed,
        pause_s=0.5,
        num_faults=30,
    )

    assert report.num_rows == 2000 and report.violations == []


@pytest.mark.slow
def test_what_is_lost_with_killed_workers_is_little_and_soon_run_again_b35(folder: Path) -> None:
    report = one_signal_now_and_then(
        shared_nursery(), folder / "kills", signal.SIGKILL, num_rows=3000, pause_s=2.0
    )

    assert report.num_faults["SIGKILL"] >= 1
    assert max(report.takeovers_s) <= LEASE_S + 5


@pytest.mark.slow
def test_nothing_is_decoded_twice_however_often_workers_are_stopped_b70(folder: Path) -> None:
    report = one_signal_now_and_then(
        shared_nursery(), folder / "stops", signal.SIGTERM, num_rows=2000, pause_s=0.5
    )

    assert report.num_faults["SIGTERM"] >= 2
    assert report.num_again == 0


@pytest.mark.slow
def test_a_worker_that_lives_twenty_leases_is_never_doubled_b34(folder: Path) -> None:
    report = a_long_life(shared_nursery(), folder / "life", num_leases=20, lease_s=1.0)

    assert report.decoding_s >= 20.0
    assert (report.num_attempts, report.num_shards, report.num_again) == (1, 1, 0)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_batch_b68(folder: Path) -> None:
    memory = a_large_batch(shared_nursery(), folder / "large", num_rows=30_000)

    for readings in (memory.worker, memory.control, memory.queue):
        assert memory.growth(readings) < 0.1 * max(readings)


@pytest.mark.slow
@pytest.mark.real_model
def test_a_real_model_is_killed_and_gives_the_same_rows(folder: Path, smollm2_folder: Path) -> None:
    server = RedisProcess("redis6").start()
    arena = Arena(folder / "real", shared_nursery(), server.url, lease_s=3.0, flush_s=0.5)
    arena.model, arena.real_model = str(smollm2_folder), True
    arena.write(make_line(f"r{idx}", max_tokens=24, temperature=0.8) for idx in range(24))
    try:
        undisturbed = arena.run_undisturbed()
        control = arena.start_control()
        for _ in range(2):
            worker = arena.start_worker()
            wait_for("tokens", lambda worker=worker: worker.has_passed("stored"))
            arena.hurt(worker, signal.SIGKILL)
        arena.start_worker()
        assert control.end() in ENDED, arena.said()
        report = check(arena.evidence(undisturbed))
    finally:
        arena.close()
        server.remove()

    assert report.violations == []
    assert report.num_faults["SIGKILL"] == 2 and report.num_attempts > report.num_shards
