"""Redis goes away under workers and control side: restarted with and without its data, emptied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_run import Desk, make_line
from pipeline import fast_folder
from redis_server import RedisProcess
from workers import Fleet, wait_for

from gristmill.settings import Settings

LEASE_S = 2.0
NUM_ROWS = 60
SHARED = {"lease_s": LEASE_S, "flush_interval_s": 0.2, "quiet_flush_interval_s": 0.2}
OPTIONS = {
    "kept": ("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
    "lost": ("--save", "", "--appendonly", "no"),
}


@pytest.fixture
def redis(request: pytest.FixtureRequest) -> Iterator[RedisProcess]:
    server = RedisProcess("redis6", OPTIONS[request.param])
    server.start()
    yield server
    server.remove()


@pytest.fixture
def fleet(redis: RedisProcess) -> Iterator[Fleet]:
    with fast_folder() as folder:
        desk = Desk(folder, settings=Settings(shard_max_jobs=8, resend_after_s=3.0, **SHARED))
        desk.write(make_line(f"r{idx}") for idx in range(NUM_ROWS))
        fleet = Fleet(desk, redis.url, SHARED)
        try:
            yield fleet
        finally:
            fleet.close()
            print("\n".join(worker.log for worker in fleet.workers))  # shown when a test fails


@pytest.mark.parametrize("redis", OPTIONS, indirect=True)
def test_a_restarted_redis_is_taken_up_again_b36(fleet: Fleet, redis: RedisProcess) -> None:
    with fleet.running():
        worker = fleet.start()
        wait_for("tokens", lambda: fleet.num_decoded() > 40)
        redis.kill()
        wait_for("an outage", lambda: worker.health("/readyz")[0] == 503)
        redis.start()

    assert [line["custom_id"] for line in fleet.desk.answers] == [f"r{i}" for i in range(NUM_ROWS)]
    assert worker.process.poll() is None, "no restart by hand"
    assert fleet.num_decoded_twice() == 0, "it fenced itself in order, and went on where it was"
    wait_for("readiness", lambda: worker.health("/readyz")[0] == 200)


@pytest.mark.parametrize("redis", ["lost"], indirect=True)
def test_an_emptied_redis_costs_no_row(fleet: Fleet, redis: RedisProcess) -> None:
    with fleet.running():
        fleet.start()
        wait_for("tokens", lambda: fleet.num_decoded() > 40)
        with redis.client as client:
            client.flushall()

    assert [line["custom_id"] for line in fleet.desk.answers] == [f"r{i}" for i in range(NUM_ROWS)]
