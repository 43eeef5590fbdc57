"""What a batch waits for and when it will be done, from what workers were seen to accomplish."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleet_mill import FleetMill
from mill import Mill
from pipeline import PIN, Bench

from gristmill.control.budget import tokens_left
from gristmill.control.outlook import NO_SIGN_S, Outlook, Phase, Progress
from gristmill.fleet import LOST_AFTER_S, WorkerBeat, WorkerCard, WorkerState
from gristmill.ledger import batches, paces, workers
from gristmill.ledger.paces import HALF_LIFE_S
from gristmill.ledger.status import FreezeReason
from gristmill.queues.base import BULK_LANE
from gristmill.types import ModelPin


@pytest.fixture
def mill(bench: Bench) -> Mill:
    bench.settings = bench.settings.model_copy(
        update={"shard_max_jobs": 4, "dispatch_window_shards": 1, "shard_max_tokens": 2000}
    )
    return Mill(bench)


def progress(mill: Mill, tenant_id: str, batch_id: str) -> Progress:
    found = Outlook(mill.bench.ledger, mill.bench.clock).of(mill.batch(tenant_id, batch_id))
    assert found is not None
    return found


def test_a_batch_that_runs_alone_is_done_when_it_says(mill: Mill) -> None:
    """A thousand tokens a second, 500 a row."""
    mill.submit("acme", "one", num_jobs=200)
    mill.run(40)
    found = progress(mill, "acme", "one")
    mill.run(70)

    batch = mill.batch("acme", "one")
    assert (found.phase, found.num_ahead) == (Phase.RUNNING, 0)
    assert found.tokens_per_s == pytest.approx(1000, rel=0.05)
    assert batch.completed_at is not None
    assert found.completes_at == pytest.approx(batch.completed_at, abs=5)
    assert Outlook(mill.bench.ledger, mill.bench.clock).of(batch) is None


def test_answers_that_are_longer_than_expected_are_seen_after_some_rows(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=100, answer_tokens=1600, max_tokens=100)
    mill.run(60)
    found = progress(mill, "acme", "one")
    mill.run(150)

    assert mill.batch("acme", "one").completed_at == pytest.approx(found.completes_at, abs=10)


def test_who_waits_is_told_behind_how_many_and_until_when(mill: Mill) -> None:
    """Two tenants share the speed; the second batch of each waits for the first."""
    for tenant in ("acme", "other"):
        for name in ("first", "second"):
            mill.submit(tenant, f"{tenant}-{name}", num_jobs=60)
    mill.run(30)
    running = progress(mill, "acme", "acme-first")
    waiting = progress(mill, "acme", "acme-second")
    mill.run(110)

    assert running.phase is Phase.RUNNING and waiting.phase is Phase.QUEUED
    assert waiting.num_ahead == 1 and "1 of your batches" in waiting.detail
    for found, name in ((running, "acme-first"), (waiting, "acme-second")):
        ended_at = mill.batch("acme", name).completed_at
        assert ended_at == pytest.approx(found.completes_at, abs=8)


def test_without_a_sign_of_a_worker_that_is_what_a_batch_waits_for(mill: Mill) -> None:
    mill.num_workers = 0
    mill.submit("acme", "one", num_jobs=8)
    mill.run(5)
    first = progress(mill, "acme", "one")
    mill.bench.clock.advance(NO_SIGN_S)
    later = progress(mill, "acme", "one")
    mill.num_workers = 1
    mill.run(2)

    assert first.phase is Phase.NO_WORKER and "no worker has announced itself" in first.detail
    assert later.phase is Phase.NO_WORKER and "No worker of the model fake" in later.detail
    assert progress(mill, "acme", "one").phase is Phase.RUNNING


def test_before_its_first_worker_is_ready_a_batch_says_who_loads_and_who_does_not_fit(
    mill: Mill,
) -> None:
    def announce(seq: int, state: WorkerState, pin: ModelPin) -> None:
        card = WorkerCard("wrk-1", "host", pin, "cpu", 0 if state == "loading" else 8192, 64)
        with mill.bench.ledger.write() as conn:
            workers.put_beat(conn, WorkerBeat(card, seq, state, 0.0), now=mill.bench.control.now)

    mill.num_workers = 0
    mill.submit("acme", "one", num_jobs=8)
    mill.run(1)
    other = replace(PIN, revision="f" * 64, dtype="bfloat16")
    announce(1, WorkerState.LOADING, PIN)
    loading = progress(mill, "acme", "one")
    announce(2, WorkerState.READY, other)
    mill.run(1)
    unfit = progress(mill, "acme", "one")

    assert loading.phase is unfit.phase is Phase.NO_WORKER
    assert loading.detail == "It waits for a machine of the model fake: one is loading."
    assert f"revision ffffffffffff instead of {PIN.revision[:12]}" in unfit.detail
    assert f"dtype bfloat16 instead of {PIN.dtype}" in unfit.detail
    assert "GRISTMILL_DTYPE" in unfit.detail


def test_nobody_waits_behind_a_batch_that_waits_for_a_machine(bench: Bench) -> None:
    mill = FleetMill(bench)
    mill.add("small", 2048)
    mill.add("large", 8192)
    mill.kill("large")
    bench.clock.advance(LOST_AFTER_S + 1)
    mill.beat()
    mill.submit("long", [6000])
    mill.submit("short", [100] * 30)
    mill.run(2, works=False)
    outlook = Outlook(bench.ledger, bench.clock)

    long, short = outlook.of(mill.batch("long")), outlook.of(mill.batch("short"))

    assert long is not None and long.phase is Phase.NO_WORKER
    assert short is not None and short.num_ahead == 0


def test_a_batch_that_is_read_or_ends_says_so(mill: Mill) -> None:
    mill.bench.create()
    assert progress(mill, "acme", mill.bench.batch_id).phase is Phase.VALIDATING
    mill.submit("acme", "one", num_jobs=8)
    with mill.bench.ledger.write() as conn:
        batches.freeze(conn, "acme", "one", FreezeReason.COMPLETE, 5)

    assert progress(mill, "acme", "one").phase is Phase.FINALIZING


def test_the_ledger_is_read_every_few_seconds_however_often_it_is_asked(mill: Mill) -> None:
    mill.submit("acme", "one", num_jobs=8)
    batch = mill.batch("acme", "one")
    outlook = Outlook(mill.bench.ledger, mill.bench.clock)
    found = [outlook.of(batch)]
    mill.run(1)

    found += [outlook.of(batch) for _ in range(100)]
    mill.bench.clock.advance(2)

    assert len(set(found)) == 1
    assert outlook.of(batch) != found[0]


def test_the_pace_follows_the_workers_and_idle_time_counts_for_nothing(mill: Mill) -> None:
    batch = mill.submit("acme", "one", num_jobs=8)

    def record(num_tokens: int, times: int, *, every_s: float = 5.0) -> float | None:
        for _ in range(times):
            mill.bench.clock.advance(every_s)
            with mill.bench.ledger.write() as conn:
                paces.record(conn, batch, num_tokens=num_tokens, now_s=mill.bench.clock.now)
        with mill.bench.ledger.read() as conn:
            (pace,) = paces.list_paces(conn, BULK_LANE)
        assert pace.model_name == PIN.name and pace.heard_at == mill.bench.clock.now
        return pace.tokens_per_s

    assert record(500, 1) is None
    assert record(500, 20) == pytest.approx(100)
    assert record(500, 1, every_s=10_000) == pytest.approx(100)
    slower = record(50, int(HALF_LIFE_S / 5))
    assert slower is not None and 10 < slower < 60
    assert record(50, 200) == pytest.approx(10, rel=0.1)


def test_what_is_left_is_guessed_until_rows_have_shown_it() -> None:
    def left(total: int, completed: int, failed: int, used: int) -> float:
        return tokens_left(
            expected_tokens=1000, total=total, completed=completed, failed=failed, used_tokens=used
        )

    assert left(100, 0, 0, 0) == 1000
    assert left(100, 10, 0, 5000) == 900
    # Rows that were refused were never expected to take anything.
    assert left(100, 0, 50, 0) == 1000
    assert left(100, 50, 0, 5000) == 5000
    assert left(100, 60, 40, 5000) == 0
