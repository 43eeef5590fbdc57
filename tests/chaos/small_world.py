"""A whole installation in one thread: real control side, real workers, a clock that the test has.

Control processes, workers and callers take turns at random, also in the middle of each other's
calls on the store and the queue, while all kinds of faults befall them. `small_rules.py` says what
must be true whatever happens. `python tests/chaos/small_world.py 0 1000` runs so many worlds.
"""

from __future__ import annotations

import atexit
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

if __name__ == "__main__":
    for folder in ("integration", "services"):
        sys.path.insert(0, str(Path(__file__).parents[1] / folder))

from fake_engine import Clock
from local_run import make_model_folder
from pipeline import fast_folder
from shaky import Crash, Fates, WholeStore
from small_control import Callers, Stewards
from small_messages import Messages
from small_rules import Rules
from small_workers import LEASE_S, Workers

from gristmill import crash_points
from gristmill.ledger import batches
from gristmill.ledger.ledger import open_sqlite
from gristmill.models import find_model
from gristmill.queues.memory import MemoryQueue
from gristmill.settings import Settings

#: The most of each that befalls one call, of all calls.
_WEATHER = {
    "meanwhile": 0.1,
    "meanwhile after": 0.1,
    "stall": 0.02,
    "fail": 0.05,
    "fail after": 0.05,
    "die": 0.01,
    "die after": 0.01,
}
#: How deep calls in the middle of calls may lie.
_MAX_DEPTH = 2


class World:
    """`seed` decides what it is like, and all that happens."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.folder = folder
        self.clock = Clock()
        self.fates = Fates(rng, self.clock, meanwhile=self._meanwhile)
        self.store = WholeStore()
        self.queue = MemoryQueue(LEASE_S, self.clock)
        self.settings = Settings(
            lease_s=LEASE_S,
            shard_max_jobs=rng.choice([2, 4, 16]),
            resend_after_s=rng.choice([60.0, 120.0]),
            dispatch_window_shards=rng.choice([1, 4, 64]),
            # What is too long for all who are there waits for somebody.
            fleet_max_row_tokens=512,
            work_lifetime_s=10**9,
        )
        self.model = find_model(str(_model_folder()), settings=self.settings)
        #: Who is in the middle of something.
        self.acting: set[str] = set()
        self.happened: Counter[str] = Counter()
        self.log: list[str] = []
        #: What this world is like.
        self.kills = rng.choice([0.0, 0.0, 0.1])
        self.damage = rng.choice([0.0, 0.0, 0.05])
        self.out_of_memory = rng.choice([0.0, 0.0, 0.05])
        self.clocks_are_off = rng.random() < 0.2
        self._weather = {
            kind: rng.choice([0.0, 0.0, most / 4, most]) for kind, most in _WEATHER.items()
        }
        self._depth = 0
        self.ledger = self.open_ledger()
        self.rules = Rules(self)
        self.workers = Workers(self)
        self.stewards = Stewards(self)
        self.callers = Callers(self)
        self.messages = Messages(self)

    def run(self, num_actions: int) -> None:
        """So many actions, then a lull in which all must come to its end."""
        with self._watched():
            for _ in range(self.rng.choice([1, 2, 3])):
                self.callers.submit()
            self.fates.chances = self._weather
            for _ in range(num_actions):
                self.step()
            self.fates.chances = {}
            self.damage = self.out_of_memory = 0.0
            self._lull()
            self.rules.check_end()
        self.ledger.close()

    def step(self) -> None:
        """Somebody does something, or something happens."""
        actions = self._actions()
        [action] = self.rng.choices(list(actions), weights=list(actions.values()))
        self.note(f"{type(action.__self__).__name__}.{action.__name__}")
        action()
        self.rules.check_counts()

    def note(self, what: str) -> None:
        self.happened[what.partition(" ")[0]] += 1
        self.log.append(f"{self.clock():.1f} {'  ' * self._depth}{what}")

    def open_ledger(self, copied_from: Path | None = None) -> Any:
        """An empty one, or an older one."""
        path = self.folder / "ledger.sqlite"
        for old in self.folder.glob("ledger.sqlite*"):
            old.unlink()
        shutil.copy(copied_from or _empty_ledger(), path)
        return open_sqlite(path)

    def quick_look(self) -> list[dict[str, Any]]:
        """The rows of all batches in the Ledger, as they are now."""
        path = self.folder / "ledger.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("SELECT * FROM batches")]

    def _actions(self) -> dict[Any, float]:
        workers, stewards, callers = self.workers, self.stewards, self.callers
        messages = self.messages
        return {
            workers.turn: 40,
            workers.beat: 2,
            workers.spawn: 3,
            workers.kill: 0.6,
            workers.drain: 0.6,
            workers.freeze: 0.6,
            stewards.dispatch: 4,
            stewards.take_bells: 6,
            stewards.sweep: 2,
            stewards.read: 1.5,
            stewards.restart: 0.5,
            stewards.lose_ledger: 0.2,
            stewards.keep_copy: 0.3,
            callers.submit: 0.4,
            callers.cancel: 0.3,
            callers.retry: 1,
            messages.lose: 0.6,
            messages.double: 0.6,
            messages.delay: 0.6,
            messages.shuffle: 0.3,
            messages.wipe: 0.1,
            self.advance: 8,
        }

    def advance(self) -> None:
        """Time goes by, mostly a little."""
        self.clock.advance(self.rng.choice([0.2, 1.0, 5.0, 5.0, 20.0, 20.0, 90.0, 300.0]))

    def _meanwhile(self, actor: str) -> None:
        """Others act in the middle of a call of `actor`, who does nothing else."""
        if self._depth == _MAX_DEPTH or actor in self.fates.spared:
            return
        self._depth += 1
        try:
            for _ in range(self.rng.choice([1, 3, 8])):
                self.step()
        finally:
            self._depth -= 1

    def _lull(self) -> None:
        """Nothing befalls anybody any more, and whoever is missing is started."""
        self.note("lull")
        for _ in range(3000):
            self.workers.complete()
            for _ in range(6):
                self.workers.turn_all()
            self.stewards.turn_all()
            self.clock.advance(1.0 if self.workers.are_busy else 20.0)
            self.rules.check_counts()
            if not self._open_batches() and not self.messages.num_waiting():
                return
        raise AssertionError(f"no end: {self._open_batches()} {self.messages.num_waiting()}")

    def _open_batches(self) -> list[str]:
        with self.ledger.read() as conn:
            return [f"{b.id} {b.status} {b.completed}" for b in batches.list_open(conn)]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        words = random.Random(self.rng.random())

        def token_hex(num_bytes: int = 32) -> str:
            return words.randbytes(num_bytes).hex()

        with (
            patch("secrets.token_hex", token_hex),
            patch.object(crash_points, "at", self.rules.at),
        ):
            yield


@cache
def _shared_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="gristmill-small-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _model_folder() -> Path:
    return make_model_folder(_shared_folder() / "M")


@cache
def _empty_ledger() -> Path:
    """Made once: it takes longer than all that a small world does to it."""
    path = _shared_folder() / "empty.sqlite"
    ledger = open_sqlite(path)
    with ledger.write() as conn:
        conn.exec_driver_sql("SELECT 1")
    ledger.close()
    return path


def run_world(seed: int, *, num_actions: int = 200) -> World:
    """Raises AssertionError for what must not be."""
    with fast_folder() as folder:
        world = World(folder, seed)
        try:
            world.run(num_actions)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            error.world = world  # type: ignore[attr-defined]
            raise
        finally:
            world.ledger.close()
        return world


def main() -> None:
    import traceback

    first, last = int(sys.argv[1]), int(sys.argv[2])
    happened: Counter[str] = Counter()
    num_failed = 0
    for seed in range(first, last):
        try:
            happened += run_world(seed).happened
        except (Exception, Crash) as error:
            num_failed += 1
            print(f"== seed {seed}")
            traceback.print_exc(limit=-6, file=sys.stdout)
            if last - first == 1:
                print("\n".join(error.world.log))  # type: ignore[attr-defined]
    print(num_failed, "of", last - first, "failed;", dict(happened.most_common()))


if __name__ == "__main__":
    main()
