"""A real fleet of known machines: Redis, `gristmill control`, a `gristmill worker` for each.

Imported by simulated_fleet.py. Every part is the real one, in a process of its own, but for the
tensors: behind a worker is the real Scheduler, whose steps sleep as long as the machine says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import func, select

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("integration", "services")]

from local_run import make_model_folder  # noqa: E402
from nursery import Nursery  # noqa: E402
from pipeline import make_windows  # noqa: E402
from redis_server import RedisProcess  # noqa: E402

from gristmill.control.base import Control, read_batch  # noqa: E402
from gristmill.control.ingest import ingest_windows  # noqa: E402
from gristmill.ledger import batches, workers  # noqa: E402
from gristmill.ledger.batch import Submission  # noqa: E402
from gristmill.ledger.open import open_ledger  # noqa: E402
from gristmill.ledger.schema import batches as batches_table  # noqa: E402
from gristmill.ledger.schema import shards as shards_table  # noqa: E402
from gristmill.models import find_model  # noqa: E402
from gristmill.process.connect import connect  # noqa: E402
from gristmill.settings import Settings  # noqa: E402
from gristmill.simulator.costs import Timing  # noqa: E402
from gristmill.simulator.machine import Machine  # noqa: E402
from gristmill.types import Endpoint, Job, ModelPin  # noqa: E402

_CHILD = Path(__file__).with_name("processes") / "known_worker.py"
_PATIENCE_S = 120.0
#: The window of the model; no machine has a longer one.
_WINDOW = 8192
_LOOK_S = 0.05
#: As old as what a control process knows of the fleet may be (control/fleet_view.py), and more.
_FLEET_AGE_S = 3.0


@dataclass(frozen=True, slots=True)
class RealBatch:
    """Jobs that are there at once, so many seconds after the first ones."""

    id: str
    tenant_id: str
    arrives_at: float
    jobs: Sequence[Job]


@dataclass(frozen=True, slots=True)
class RealRow:
    """Seconds since the first batch; the Attempt that counts, on the machine of that name."""

    batch_id: str
    idx: int
    machine: str
    begun_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class Course:
    """What happened: until the last result was accepted, so many `seconds`."""

    seconds: float
    rows: tuple[RealRow, ...]
    #: Rows by whether the Lane of their Shard is that of a pool.
    rows_by_lane: Mapping[str, int]
    #: For so long, on the mean, the workers had been ready when the first batch came: their next
    #: beats come so much sooner.
    ready_for_s: float
    killed_at: float | None = None


@dataclass
class RealFleet:
    """Processes that live while `running_fleet` is entered."""

    folder: Path
    control: Control
    pin: ModelPin
    pids: dict[str, int]
    nursery: Nursery

    def run(
        self, given: Sequence[RealBatch], *, victim: str = "", kill_after: float | None = None
    ) -> Course:
        """Read all of it, let each batch begin at its time, and wait for the end of all.
        `kill_after`: the share of rows with a result when the machine `victim` is killed."""
        for one in given:
            self._read(one)
        began, killed_at, ready_for_s = time.monotonic(), None, self._ready_for_s()
        waiting = sorted(given, key=lambda one: one.arrives_at)
        num_rows = sum(len(one.jobs) for one in given)
        while (num_done := self._num_done()) < num_rows:
            now = time.monotonic() - began
            while waiting and waiting[0].arrives_at <= now:
                self._begin(waiting.pop(0))
            if kill_after is not None and killed_at is None and num_done >= kill_after * num_rows:
                os.kill(self.pids[victim], signal.SIGKILL)
                killed_at = time.monotonic() - began
            for name, pid in self.pids.items():
                is_dead = self.nursery.exit_code(pid) is not None
                assert not is_dead or (name == victim and killed_at), self.said(name)
            time.sleep(_LOOK_S)
        seconds = time.monotonic() - began
        return Course(seconds, self._rows(began), self._rows_by_lane(), ready_for_s, killed_at)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def wait_for_workers(self, num_workers: int) -> None:
        """Until dispatch has heard of all of them."""

        _wait_for("workers", lambda: len(self._ready_since()) == num_workers)
        time.sleep(_FLEET_AGE_S)

    def _ready_since(self) -> list[float]:
        with self.control.ledger.read() as conn:
            alive = workers.list_alive(conn, time.time())
        return [one.beat.at for one in alive if one.beat.state == "ready"]

    def _ready_for_s(self) -> float:
        since = self._ready_since()
        return time.time() - sum(since) / len(since)

    def _read(self, given: RealBatch) -> None:
        """It lies in Shards then, and is not in progress yet."""
        now = int(time.time())
        with self.control.ledger.write() as conn:
            batches.create(
                conn,
                given.tenant_id,
                given.id,
                run_id="run-1",
                model=self.pin,
                seed=given.id,
                input_fingerprint="sha",
                options={},
                created_at=now,
                expires_at=now + 24 * 3600,
                submission=Submission(Endpoint.COMPLETIONS, "file-1", "24h"),
            )
        made = read_batch(self.control, given.tenant_id, given.id)
        ingest_windows(self.control, made, make_windows(given.jobs), should_pause=lambda: True)

    def _begin(self, given: RealBatch) -> None:
        made = read_batch(self.control, given.tenant_id, given.id)
        ingest_windows(self.control, made, (), should_pause=lambda: False)

    def _num_done(self) -> int:
        table = batches_table.c
        with self.control.ledger.read() as conn:
            found = conn.execute(select(func.sum(table.completed + table.failed))).scalar()
        return int(found or 0)

    def _rows(self, began: float) -> tuple[RealRow, ...]:
        """Of each row the Attempt that came to its end last: an earlier one was not stored."""
        found: dict[tuple[str, int], RealRow] = {}
        for name in self.pids:
            path = self.folder / f"{name}.rows"
            for line in path.read_text().splitlines() if path.exists() else ():
                custom_id, begun_at, finished_at = json.loads(line)
                batch_id, _, idx = custom_id.rpartition("/")
                row = RealRow(batch_id, int(idx), name, begun_at - began, finished_at - began)
                before = found.get((batch_id, row.idx))
                if before is None or before.finished_at < row.finished_at:
                    found[batch_id, row.idx] = row
        return tuple(found.values())

    def _rows_by_lane(self) -> Mapping[str, int]:
        table = shards_table.c
        query = select(table.lane, func.sum(table.num_rows)).group_by(table.lane)
        counts: Counter[str] = Counter()
        with self.control.ledger.read() as conn:
            for lane, num_rows in conn.execute(query):
                counts[kind_of_lane(lane)] += num_rows
        return counts


def kind_of_lane(lane: str | None) -> str:
    """Whether it is that of a pool, or the mixed one."""
    return "own" if (lane or "").startswith("pool-") else "mixed"


@contextmanager
def running_fleet(machines: Sequence[Machine], timing: Timing) -> Iterator[RealFleet]:
    """A control side and a worker for each machine, all of them known to dispatch."""
    nursery, server = Nursery(_CHILD), RedisProcess("redis6").start()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            settings: dict[str, Any] = {
                "lease_s": timing.lease_s,
                "flush_interval_s": timing.flush_interval_s,
                "quiet_flush_interval_s": 2 * timing.flush_interval_s,
                "dispatch_window_shards": timing.dispatch_window_shards,
                "shard_max_jobs": timing.shard_max_jobs,
                "shard_max_tokens": timing.shard_max_tokens,
                "device": "cpu",
            }
            model = make_model_folder(folder / "model")
            (model / "config.json").write_text(
                json.dumps({"vocab_size": 256, "max_position_embeddings": _WINDOW})
            )
            ledger_url, store_url = str(folder / "ledger.sqlite"), str(folder / "store")
            links = ("--queue", server.url, "--store", store_url)
            control = _control(ledger_url, server.url, store_url, Settings(**settings))
            pin = find_model(str(model), settings=control.settings).pin
            fleet = RealFleet(folder, control, pin, {}, nursery)

            def start(name: str, *argv: str, machine: Machine | None = None) -> None:
                order: dict[str, Any] = {
                    "argv": [*argv, *links, "--health", "off"],
                    "env": {f"GRISTMILL_{k.upper()}": str(v) for k, v in settings.items()},
                    "out": str(folder / f"{name}.log"),
                    "err": str(folder / f"{name}.log"),
                    "machine": msgspec.to_builtins(machine),
                    "rows": str(folder / f"{name}.rows"),
                }
                fleet.pids[name] = nursery.bear(order)

            start("control", "control", "--ledger", ledger_url)
            for one in machines:
                limit = ("--max-model-len", str(one.max_row_tokens))
                start(one.name, "worker", "--model", str(model), *limit, machine=one)
            try:
                fleet.wait_for_workers(len(machines))
                yield fleet
            finally:
                for pid in fleet.pids.values():
                    if nursery.exit_code(pid) is None:
                        os.kill(pid, signal.SIGKILL)
                        nursery.wait(pid, _PATIENCE_S)
                control.queue.close()
                control.ledger.close()
    finally:
        server.remove()
        nursery.close()


def _control(ledger_url: str, queue_url: str, store_url: str, settings: Settings) -> Control:
    """What an API process would submit batches with."""
    ledger = open_ledger(ledger_url)
    queue, store = connect(queue_url, store_url, settings)
    return Control(ledger, store, queue, time.time, settings)


def _wait_for(what: str, is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_at, f"in vain: {what}"
        time.sleep(_LOOK_S)
