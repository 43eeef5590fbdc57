"""Worker processes that are killed, stopped, frozen and cut off; what becomes of their batch."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
import transformers  # two runs in one process must not import it at the same moment
from aws_server import AwsServer, aws
from local_run import Desk, make_line
from metadata_server import MetadataServer
from pipeline import fast_folder
from redis_server import shared_server
from workers import Fleet, wait_for

from gristmill.cli.failures import ExitCode
from gristmill.settings import Settings

__all__ = ["aws", "transformers"]

LEASE_S = 2.0
NUM_ROWS = 60


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    queue_url = f"{shared_server('redis6').url}?prefix=test-{uuid4().hex}"
    shared = {"lease_s": LEASE_S, "flush_interval_s": 0.2, "quiet_flush_interval_s": 0.2}
    with fast_folder() as folder:
        desk = Desk(folder, settings=Settings(shard_max_jobs=8, resend_after_s=3.0, **shared))
        desk.write(make_line(f"r{idx}") for idx in range(NUM_ROWS))
        fleet = Fleet(desk, queue_url, shared)
        try:
            yield fleet
        finally:
            fleet.close()
            print("\n".join(worker.log for worker in fleet.workers))  # shown when a test fails


def answers(fleet: Fleet) -> dict[str, str]:
    return {
        line["custom_id"]: line["response"]["body"]["choices"][0]["text"]
        for line in fleet.desk.answers
    }


def assert_each_row_once(fleet: Fleet) -> None:
    ids = [line["custom_id"] for line in fleet.desk.answers]
    assert ids == [f"r{idx}" for idx in range(NUM_ROWS)]


def test_a_killed_workers_rows_run_again_within_a_lease_b34_b35(fleet: Fleet) -> None:
    fleet.step_s = 0.06
    first, second = fleet.start(), fleet.start()
    wait_for("both", lambda: all(worker.has_said("health") for worker in fleet.workers))
    with fleet.running():
        wait_for("work", lambda: second.shards_begun() and first.shards_begun())
        wait_for("tokens", lambda: fleet.num_decoded() > 60)
        first.send(signal.SIGSTOP)
        open_shards = first.shards_begun() - first.shards_ended()
        first.send(signal.SIGKILL)
        killed_at = time.monotonic()
        wait_for("a takeover", lambda: open_shards <= second.shards_begun())
        takeover_s = time.monotonic() - killed_at

    assert open_shards and takeover_s <= LEASE_S + 5
    assert_each_row_once(fleet)
    assert first.exit_code() == -signal.SIGKILL
    # Eight rows run at once; a flush and what a busy machine adds are some steps of each.
    assert fleet.num_decoded_twice() <= 8 * 25


def test_after_sigterm_no_token_is_decoded_twice_b70(fleet: Fleet) -> None:
    fleet.step_s = 0.06  # there is work left for all of them
    with fleet.running():
        for _ in range(3):
            worker = fleet.start()
            before = fleet.num_decoded()
            wait_for("tokens", lambda before=before: fleet.num_decoded() > before + 40)
            worker.send(signal.SIGTERM)
            assert worker.exit_code() == ExitCode.OK
            assert "reason=drained" in worker.log
        fleet.step_s = 0.01
        fleet.start()

    assert_each_row_once(fleet)
    assert fleet.num_decoded_twice() == 0


def test_after_a_spot_notice_no_token_is_decoded_twice(fleet: Fleet) -> None:
    fleet.step_s = 0.06  # there is work left for the other
    with fleet.running(), MetadataServer() as machine:
        worker = fleet.start(spot_notice="aws", spot_notice_url=machine.url)
        wait_for("tokens", lambda: fleet.num_decoded() > 40)
        machine.interrupt()
        assert worker.exit_code() == ExitCode.OK
        assert "spot notice" in worker.log and "reason=drained" in worker.log
        assert worker.shards_begun() == worker.shards_ended()
        fleet.step_s = 0.01
        fleet.start()

    assert_each_row_once(fleet)
    assert fleet.num_decoded_twice() == 0


def test_a_frozen_worker_gives_up_and_its_late_results_do_no_harm(fleet: Fleet) -> None:
    fleet.step_s = 0.06
    with fleet.running():
        zombie = fleet.start()
        wait_for("tokens", lambda: fleet.num_decoded() > 30)
        zombie.send(signal.SIGSTOP)
        held = re.findall(r"attempt began .* shard=(\d+) ", zombie.log)
        fleet.step_s = 0.03
        other = fleet.start()
        wait_for("a takeover", lambda: any(other.has_said(f" shard={n} ") for n in held))
        zombie.send(signal.SIGCONT)
        wait_for("a fence", lambda: zombie.has_said("lease lost"))

    assert_each_row_once(fleet)


@pytest.mark.slow
def test_a_worker_whose_engine_hangs_ends_and_says_so(fleet: Fleet) -> None:
    lines = [make_line(f"r{idx}") for idx in range(NUM_ROWS)]
    lines[3] = make_line("r3", prompt="!hang")
    fleet.desk.write(lines)
    with fleet.running() as batch:
        codes = []
        while batch.is_alive():
            worker = fleet.start(watchdog_s=1.0)
            wait_for(
                "an end", lambda w=worker: w.process.poll() is not None or not batch.is_alive()
            )
            codes.append(worker.process.poll())

    assert set(codes) - {None} == {ExitCode.HUNG}
    assert [line["error"]["code"] for line in fleet.desk.failures] == ["worker_crashed"]
    assert len(fleet.desk.answers) == NUM_ROWS - 1


@pytest.mark.slow
def test_a_row_that_kills_every_worker_costs_itself_alone(fleet: Fleet) -> None:
    lines = [make_line(f"r{idx}") for idx in range(NUM_ROWS)]
    lines[17] = make_line("r17", prompt="!kill")
    fleet.desk.write(lines)
    with fleet.running() as batch:
        while batch.is_alive():
            worker = fleet.start()
            wait_for(
                "an end", lambda w=worker: w.process.poll() is not None or not batch.is_alive()
            )

    assert [line["custom_id"] for line in fleet.desk.failures] == ["r17"]
    assert fleet.desk.failures[0]["response"] is None
    assert fleet.desk.failures[0]["error"]["code"] == "worker_crashed"
    assert len(fleet.desk.answers) == NUM_ROWS - 1


def test_an_idle_worker_ends_soon_after_sigterm_and_tells_how_it_is_b70(fleet: Fleet) -> None:
    worker = fleet.start()
    wait_for("readiness", lambda: worker.has_said("health") and worker.health("/readyz")[0] == 200)
    assert worker.health("/livez") == (
        200,
        {"live": True, "ready": True, "state": "running", "troubles": []},
    )
    assert worker.health("/other")[0] == 404

    worker.send(signal.SIGTERM)

    assert worker.exit_code(within_s=30) == ExitCode.OK


def test_a_second_sigterm_ends_at_once_and_the_batch_goes_on_b70(fleet: Fleet) -> None:
    fleet.step_s = 40.0
    with fleet.running():
        worker = fleet.start()
        wait_for("work", lambda: worker.has_said("attempt began"))
        worker.send(signal.SIGTERM)
        wait_for("a drain", lambda: worker.health("/readyz")[0] == 503)
        worker.send(signal.SIGTERM)
        assert worker.exit_code(within_s=20) == ExitCode.UNSAVED
        fleet.step_s = 0.01
        fleet.start()

    assert_each_row_once(fleet)


def test_a_worker_without_work_ends_when_it_is_told_to(fleet: Fleet) -> None:
    with fleet.running():
        worker = fleet.start(idle_exit_s=2.0)

    assert worker.exit_code() == ExitCode.OK
    assert_each_row_once(fleet)


def test_rows_go_on_while_the_store_is_away(fleet: Fleet) -> None:
    fleet.step_s = 0.06
    with fleet.running():
        worker = fleet.start()
        wait_for("tokens", lambda: fleet.num_decoded() > 30)
        fleet.take_store_away()
        wait_for("an outage", lambda: worker.has_said("outage what="))
        before = fleet.num_decoded()
        wait_for("tokens", lambda: fleet.num_decoded() > before + 10)
        assert worker.health("/readyz")[0] == 503
        assert worker.health("/livez")[0] == 200
        fleet.give_store_back()

    assert "outage over" in worker.log
    assert_each_row_once(fleet)
    assert fleet.num_decoded_twice() == 0


@pytest.mark.slow
def test_a_store_that_stays_away_ends_a_worker_with_a_code_of_its_own(fleet: Fleet) -> None:
    with fleet.running():
        worker = fleet.start(outage_patience_s=1.0)
        wait_for("tokens", lambda: fleet.num_decoded() > 30)
        fleet.take_store_away()
        assert worker.exit_code() == ExitCode.OUTAGE
        fleet.give_store_back()
        fleet.start()

    assert_each_row_once(fleet)


def test_two_runs_of_the_same_file_share_a_worker_and_hear_of_their_own_rows(
    fleet: Fleet,
) -> None:
    settings = fleet.desk.settings.model_copy(update={"resend_after_s": 600.0})
    fleet.desk.settings = settings
    with fast_folder() as folder:
        desk = Desk(folder, settings=settings)
        desk.write(make_line(f"r{idx}") for idx in range(NUM_ROWS))
        other = Fleet(desk, fleet.queue_url, fleet.settings, store_url=str(fleet.store))
        with fleet.running(), other.running():
            fleet.start()

        assert_each_row_once(fleet)
        assert answers(other) == answers(fleet)


@pytest.mark.slow
def test_a_batch_runs_through_s3_and_sqs(fleet: Fleet, aws: AwsServer) -> None:
    fleet.store_url = aws.s3_url(aws.new_bucket())
    fleet.queue_url = f"sqs://t-{uuid4().hex[:8]}?endpoint={aws.url}"
    with fleet.running():
        worker = fleet.start()
        wait_for("tokens", lambda: fleet.num_decoded() > 60)
        worker.send(signal.SIGTERM)
        assert worker.exit_code() == ExitCode.OK
        fleet.start()

    assert_each_row_once(fleet)
    assert fleet.num_decoded_twice() == 0


def test_the_rows_are_those_of_one_process(fleet: Fleet) -> None:
    with fleet.running():
        fleet.start()
        fleet.start()
    by_fleet = answers(fleet)

    fleet.desk.fleet = None
    fleet.desk.run()

    assert by_fleet == answers(fleet)
    assert not [path for path in fleet.store.rglob("*") if path.is_file() and "/t/" in str(path)]
