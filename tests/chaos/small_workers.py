"""The worker processes of a small world: real Workers, whose threads are turns of one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pipeline import worker_config
from shaky import Crash, ShakyQueue, ShakyStore
from small_engine import SmallEngine

from gristmill.errors import GristmillError
from gristmill.fleet import WorkerState
from gristmill_worker.announcer import Announcer
from gristmill_worker.card import plain_card
from gristmill_worker.worker import Worker

LEASE_S = 60.0
_MOST = 4


@dataclass
class Life:
    """One process."""

    name: str
    worker: Worker
    announcer: Announcer
    engine: SmallEngine
    renew_at: float = 0.0
    beat_at: float = 0.0
    frozen_until: float = 0.0

    @property
    def is_long(self) -> bool:
        return self.name.startswith("long")


class Workers:
    def __init__(self, world: Any) -> None:
        self._world = world
        self.lives: list[Life] = []
        self._num_named = 0

    @property
    def are_busy(self) -> bool:
        return any(life.engine.num_live for life in self.lives)

    def spawn(self, *, is_long: bool | None = None) -> None:
        world, rng = self._world, self._world.rng
        if len(self.lives) == _MOST and is_long is None:
            return
        is_long = rng.random() < 0.5 if is_long is None else is_long
        self._num_named += 1
        name = f"{'long' if is_long else 'short'}-{self._num_named}"
        queue: Any = ShakyQueue(world.queue, world.fates, name)
        store: Any = ShakyStore(world.store, world.fates, name, world.damage)
        window = 512 if is_long else 128
        config = replace(worker_config(patience_s=60.0), pin=world.model.pin, max_model_len=window)
        wall = self._wall()
        kv_tokens = rng.choice([None, 600])
        announcer = Announcer(
            queue, plain_card(config, kv_tokens=kv_tokens), monotonic=world.clock, wall=wall
        )
        engine = SmallEngine(
            rng,
            world.clock,
            max_num_seqs=rng.choice([1, 3, 8]),
            on_token=world.rules.decoded,
            on_step=lambda: world.rules.steps(life),
        )
        engine.out_of_memory = world.out_of_memory
        worker = Worker(
            engine,
            queue,
            store,
            config,
            announcer=announcer,
            kv_tokens=kv_tokens,
            monotonic=world.clock,
            wall=wall,
        )
        worker._outbox._changed.wait = self._wait  # type: ignore[method-assign]
        announcer.say(WorkerState.READY)
        life = Life(name, worker, announcer, engine)
        self.lives.append(life)
        self.beat(life)

    def turn(self, life: Life | None = None) -> None:
        with self._as_process(life) as life:
            if life is None:
                return
            now = self._world.clock()
            self._world.rules.turns(life)
            if now >= life.renew_at:
                life.renew_at = now + LEASE_S / 4
                with suppress(GristmillError):
                    life.worker.leases.renew()
            if now >= life.beat_at:
                life.beat_at = now + 10.0
                life.announcer.send()
            life.worker.turn()

    def beat(self, life: Life | None = None) -> None:
        with self._as_process(life) as life:
            if life is not None:
                life.announcer.send()

    def kill(self) -> None:
        life = self._one()
        if life is not None:
            self._bury(life, "killed")

    def drain(self) -> None:
        with self._as_process() as life:
            if life is None:
                return
            life.worker.drain()
            self._world.rules.drained(life)
            life.announcer.say(WorkerState.ENDED)
            life.announcer.send()
            self.lives.remove(life)

    def freeze(self) -> None:
        life = self._one()
        if life is not None:
            seconds = self._world.rng.uniform(0.2, 3.0) * LEASE_S
            life.frozen_until = self._world.clock() + seconds

    def complete(self) -> None:
        """One of each kind at least, and nobody is frozen."""
        for life in self.lives:
            life.frozen_until = 0.0
        for is_long in (True, False):
            if not any(life.is_long is is_long for life in self.lives):
                self.spawn(is_long=is_long)

    def turn_all(self) -> None:
        for life in self._world.rng.sample(self.lives, len(self.lives)):
            life.engine.out_of_memory = 0.0
            life.worker._outbox._store._damage = 0.0
            self.turn(life)

    @contextmanager
    def _as_process(self, life: Life | None = None) -> Iterator[Life | None]:
        """What ends a process; None when there is none that is free."""
        life = life or self._one()
        if life is None:
            yield None
            return
        acting = self._world.acting
        acting.add(life.name)
        try:
            yield life
        except Crash as crash:
            self._bury(life, str(crash))
        except GristmillError as error:
            self._bury(life, str(error))
        finally:
            acting.discard(life.name)

    def _bury(self, life: Life, why: str) -> None:
        self._world.note(f"dies {life.name}: {why}")
        self._world.rules.dies(life)
        self.lives.remove(life)

    def _one(self) -> Life | None:
        world = self._world
        free = [
            life
            for life in self.lives
            if life.name not in world.acting and life.frozen_until <= world.clock()
        ]
        return world.rng.choice(free) if free else None

    def _wall(self) -> Callable[[], float]:
        world = self._world
        off_s = world.rng.choice([-3600.0, 20.0, 3600.0]) if world.clocks_are_off else 0.0
        return lambda: world.clock() + off_s

    def _wait(self, timeout: float | None = None) -> bool:
        """A Worker that drains waits for its Outbox, on the clock of the test."""
        self._world.clock.advance(timeout or 0.05)
        return False
