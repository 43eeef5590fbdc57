"""Three worker processes with limits of their own on a real Redis: rows go where they fit, and
what a killed one had goes to another that can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from commands import NURSERY, Commands, Running
from fake_engine import fake_text, fake_tokens
from installations import commands_in, wait_for
from local_run import BYTES, make_model_folder
from nursery import Nursery
from pipeline import BATCH, TENANT, Bench, fast_folder, make_job, make_windows
from redis_server import shared_server

from gristmill.control import ingest
from gristmill.control.accept import take_bells
from gristmill.control.base import Control
from gristmill.control.dispatch import dispatch
from gristmill.control.outlook import Outlook, Phase, Progress
from gristmill.control.sweep import sweep
from gristmill.ledger import workers
from gristmill.ledger.status import BatchStatus
from gristmill.models import find_model
from gristmill.queues.open import open_queue
from gristmill.settings import Settings
from gristmill.stores.keys import shard_key
from gristmill.types import Job
from gristmill.wire import decode_shard

#: A worker of each takes rows of so many tokens; `other` is of another pool than `large`.
LIMITS = {"small": 100, "medium": 200, "large": 450, "other": 512}
#: Rows of `large` do not end while the gate is there.
HELD = tuple(BYTES.index(character) for character in "!hold")
JOBS: list[Job] = [
    make_job(idx, prompt=(*prefix, *(idx + 1 for _ in range(length - len(prefix)))))
    for idx, (prefix, length) in enumerate([((), 40)] * 4 + [((), 150)] * 4 + [(HELD, 400)] * 4)
]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with closing(Nursery(NURSERY)) as nursery:
        yield nursery


@dataclass
class House:
    """A control side in this process, on a clock of the test, and workers in theirs."""

    bench: Bench
    control: Control
    commands: Commands
    worker: tuple[str, ...]
    running: dict[str, Running] = field(default_factory=dict)

    def start(self, name: str) -> None:
        limit = str(LIMITS[name])
        self.running[name] = self.commands.start(*self.worker, "--max-model-len", limit)
        wait_for(name, lambda: LIMITS[name] in self.limits_alive())

        def is_seen() -> bool:
            self.turn()
            return LIMITS[name] in {pool.max_row_tokens for pool in self.control.fleet.pools}

        wait_for(f"{name} in the eyes of dispatch", is_seen)

    def limits_alive(self) -> set[int]:
        self.turn()
        with self.bench.ledger.read() as conn:
            alive = workers.list_alive(conn, self.bench.clock())
        return {one.card.max_row_tokens for one in alive if one.beat.state == "ready"}

    def turn(self) -> None:
        """The clock goes on only when all who live were heard of: none is lost for being slow."""
        dispatch(self.control)
        take_bells(self.control, wait_s=0.05)
        sweep(self.control)
        with self.bench.ledger.read() as conn:
            heard = {w.card.max_row_tokens: w.heard_at for w in workers.list_workers(conn)}
        if all(heard.get(LIMITS[name], 0) >= self.control.now for name in self.running):
            self.bench.clock.advance(3)

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def lengths(self, name: str) -> set[int]:
        """Of the prompts of Shards that a worker has begun."""
        text = self.running[name].err.read_text()
        found = re.findall(r"attempt began .*?shard=(\d+)", text)
        return {max(len(job.prompt_ids) for job in self.jobs(int(n))) for n in found}

    def jobs(self, n: int) -> tuple[Job, ...]:
        batch = self.bench.batch
        return decode_shard(self.bench.store.get(shard_key(TENANT, BATCH, batch.run_id, n))).jobs

    def progress(self) -> Progress:
        self.turn()
        found = Outlook(self.bench.ledger, self.bench.clock).of(self.bench.batch)
        assert found is not None
        return found


@pytest.fixture
def house(nursery: Nursery) -> Iterator[House]:
    queue_url = f"{shared_server('redis6').url}?prefix=t-{uuid4().hex[:8]}"
    with fast_folder() as folder, commands_in(folder, nursery) as commands:
        commands.environ["TEST_BEAT_EVERY_S"] = "0.2"
        bench = Bench(folder, settings=Settings(shard_max_jobs=2, resend_after_s=30.0))
        bench.queue = open_queue(queue_url, 4.0)
        model = str(make_model_folder(folder / "M"))
        store = str(folder / "store")
        worker = ("worker", "--queue", queue_url, "--model", model, "--store", store)
        take_bells(bench.control)  # from now on somebody listens
        ingest.create_batch(
            bench.control,
            TENANT,
            BATCH,
            model=find_model(model, settings=Settings()).pin,
            seed="seed",
            input_fingerprint="sha",
            options={},
        )
        yield House(bench, bench.control, commands, worker)
        bench.queue.close()
        bench.ledger.close()


def test_long_rows_reach_who_can_and_go_to_another_when_it_is_killed(house: House) -> None:
    bench = house.bench
    for name in ("small", "medium", "large"):
        house.start(name)
    bench.ingest(make_windows(JOBS))

    def others_are_done() -> bool:
        house.turn()
        return bench.batch.completed == 8 and house.lengths("large") >= {400}

    wait_for("the rows that run", others_are_done)
    ran = {name: house.lengths(name) for name in ("small", "medium", "large")}
    house.kill("large")
    wait_for("that it is missed", lambda: house.limits_alive() == {100, 200})
    waiting = wait_for("the sweep", lambda: (p := house.progress()).phase is Phase.NO_WORKER and p)
    house.start("other")
    house.commands.gate.unlink()

    def is_done() -> bool:
        house.turn()
        return bench.batch.status is BatchStatus.COMPLETED

    wait_for("its end", is_done)

    assert ran["small"] <= {40} and ran["medium"] <= {40, 150}
    assert house.lengths("small") <= {40} and house.lengths("medium") <= {40, 150}
    assert house.lengths("other") == {400}
    assert "takes rows of 420 tokens" in waiting.detail, waiting
    assert bench.lines("error") is None
    answers = {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
        for line in bench.lines("output") or []
    }
    assert answers == {job.rows[0].custom_id: fake_text(fake_tokens(job)) for job in JOBS}
