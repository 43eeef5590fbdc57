"""The control processes of a small world, and those who call its API."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shaky import Crash, ShakyLedger, ShakyQueue, ShakyStore
from small_rows import make_rows

from gristmill.control.accept import take_bells
from gristmill.control.base import Control
from gristmill.control.dispatch import dispatch
from gristmill.control.read_uploads import ReadUploads
from gristmill.control.rebuild import rebuild
from gristmill.control.retry import NothingToRetry, retry
from gristmill.control.submit import submit
from gristmill.control.sweep import sweep
from gristmill.errors import GristmillError
from gristmill.ledger import batches, files
from gristmill.ledger.batch import Batch, Submission
from gristmill.ledger.files import File
from gristmill.ledger.ids import new_id
from gristmill.ledger.status import ENDS, BatchStatus
from gristmill.stores.keys import file_key
from gristmill.types import Endpoint

TENANTS = ("acme", "bolt")
_NUM_STEWARDS = 2
_MOST_BATCHES = 6


@dataclass
class Steward:
    """One process."""

    name: str
    control: Control
    uploads: ReadUploads


class Stewards:
    def __init__(self, world: Any) -> None:
        self._world = world
        self._writing: list[str] = []
        self._copy: Path | None = None
        self._all = [self.new(f"control-{n}") for n in range(_NUM_STEWARDS)]

    def new(self, name: str) -> Steward:
        world = self._world
        ledger: Any = ShakyLedger(world.ledger, world.fates, name, self._writing)
        store: Any = ShakyStore(world.store, world.fates, name)
        queue: Any = ShakyQueue(world.queue, world.fates, name)
        control = Control(ledger, store, queue, world.clock, world.settings)
        return Steward(name, control, ReadUploads(control, [world.model], monotonic=world.clock))

    def dispatch(self, steward: Steward | None = None) -> None:
        self._do(lambda one: dispatch(one.control), steward)

    def take_bells(self, steward: Steward | None = None) -> None:
        self._do(lambda one: take_bells(one.control), steward)

    def sweep(self, steward: Steward | None = None) -> None:
        self._do(lambda one: sweep(one.control, should_pause=self._pauses), steward)

    def read(self, steward: Steward | None = None) -> None:
        self._do(lambda one: one.uploads.turn(), steward)

    def restart(self) -> None:
        steward = self._one()
        if steward is not None:
            self._replace(steward)

    def turn_all(self) -> None:
        """One of them, which is as good as two when nothing befalls anybody."""
        for turn in (self.read, self.dispatch, self.take_bells, self.sweep):
            turn(self._all[0])

    def keep_copy(self) -> None:
        """A backup of the Ledger, as it is now."""
        self._copy = self._world.folder / "copy.sqlite"
        self._copy.unlink(missing_ok=True)
        with (
            closing(sqlite3.connect(self._world.folder / "ledger.sqlite")) as source,
            closing(sqlite3.connect(self._copy)) as target,
        ):
            source.backup(target)

    def lose_ledger(self) -> None:
        """It is gone, or comes back from a copy, and is rebuilt while workers go on."""
        world = self._world
        if world.acting & {one.name for one in self._all} or "caller" in world.acting:
            return
        world.ledger.close()
        world.ledger = world.open_ledger(world.rng.choice([None, self._copy]))
        self._all = [self.new(one.name) for one in self._all]
        world.rules.ledger_is_another()
        names = {one.name for one in self._all} | {"caller"}
        world.acting |= names
        steward = self._all[0]
        try:
            while True:
                try:
                    rebuild(steward.control)
                    break
                except Crash:
                    continue
                except GristmillError as error:
                    assert error.retryable, error
        finally:
            world.acting -= names

    def _pauses(self) -> bool:
        return bool(self._world.fates.chances) and self._world.rng.random() < 0.1

    def _one(self) -> Steward | None:
        free = [one for one in self._all if one.name not in self._world.acting]
        return self._world.rng.choice(free) if free else None

    def _do(self, act: Callable[[Steward], object], steward: Steward | None) -> None:
        steward = steward or self._one()
        if steward is None:
            return
        acting = self._world.acting
        acting.add(steward.name)
        try:
            act(steward)
        except Crash:
            self._world.note(f"dies {steward.name}")
            self._replace(steward)
        except GristmillError as error:
            assert error.retryable, error
        finally:
            acting.discard(steward.name)

    def _replace(self, steward: Steward) -> None:
        self._all[self._all.index(steward)] = self.new(steward.name)


class Callers:
    """Each call may fail or be cut short as any other; then the caller knows nothing of it."""

    def __init__(self, world: Any) -> None:
        self._world = world
        #: Rows by the id of the file that was uploaded.
        self.rows_of_file: dict[str, list[Any]] = {}
        self._num_files = 0

    def submit(self) -> None:
        world, rng = self._world, self._world.rng
        if "caller" in world.acting or self._num_files >= _MOST_BATCHES:
            return
        self._num_files += 1
        tenant_id = rng.choice(TENANTS)
        file_id = new_id("file-", world.clock())
        rows = make_rows(rng, rng.choice([1, 3, 10, 25]), kills=world.kills)
        self.rows_of_file[file_id] = rows
        body = "".join(f"{row.line}\n" for row in rows).encode()
        world.store.put(file_key(tenant_id, file_id), body)
        now = int(world.clock())
        with world.ledger.write() as conn:
            files.add(conn, File(file_id, tenant_id, "batch", "in.jsonl", len(body), now))
        budget = rng.choice([None, None, None, 100, 600])
        wanted = Submission(
            Endpoint.COMPLETIONS,
            file_id,
            "24h",
            max_total_tokens=budget,
            priority=rng.choice([0, 0, 5]),
        )
        window_s = rng.choice([24 * 3600, 24 * 3600, 900, 3000])

        def call(control: Control) -> None:
            submit(
                *(control.ledger, control.store, control.settings, tenant_id, wanted),
                now_s=world.clock(),
                window_s=window_s,
                resent_since=None,
            )

        self._do(call)

    def cancel(self) -> None:
        batch = self._one(lambda batch: batch.status not in ENDS)
        if batch is not None:
            self._do(lambda control: _cancel(control, batch))

    def retry(self) -> None:
        batch = self._one(lambda batch: batch.status in ENDS)
        if batch is None:
            return

        def call(control: Control) -> None:
            try:
                retry(control.ledger, control.store, control.settings, batch, now_s=control.clock())
            except NothingToRetry:
                return

        self._do(call)

    def _one(self, is_wanted: Callable[[Batch], bool]) -> Batch | None:
        if self._world.stewards._writing:
            return None
        found = [batch for batch in all_batches(self._world.ledger) if is_wanted(batch)]
        return self._world.rng.choice(found) if found else None

    def _do(self, act: Callable[[Control], object]) -> None:
        world = self._world
        if "caller" in world.acting:
            return
        control = world.stewards.new("caller").control
        world.acting.add("caller")
        try:
            act(control)
        except Crash:
            world.note("dies caller")
        except GristmillError as error:
            assert error.retryable, error
        finally:
            world.acting.discard("caller")


def _cancel(control: Control, batch: Batch) -> None:
    with control.ledger.write() as conn:
        batches.transition(conn, batch.tenant_id, batch.id, BatchStatus.CANCELLING, control.now)


def all_batches(ledger: Any) -> list[Batch]:
    with ledger.read() as conn:
        return [b for tenant in TENANTS for b in batches.list_newest(conn, tenant, limit=1000)]
