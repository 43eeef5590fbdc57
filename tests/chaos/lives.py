"""What a process that the nursery has forked does: `gristmill worker` or `gristmill run`.

Both run as the command line starts them; only the Engine behind the worker is another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from planted import plant
from scripted_engine import ScriptedEngine, by_attempt

import gristmill.stores.local as local_store
from gristmill import crash_points
from gristmill.cli import app
from gristmill.compute import WorkerConfig
from gristmill.queues.base import Queue
from gristmill.stores.base import Store
from gristmill_worker.engine.base import Engine
from gristmill_worker.worker import Worker


class WatchedEngine:
    """A real Engine whose tokens go into the history, once they are known."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lengths: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, seq_id: str, job: Any, resume: Any) -> None:
        self._lengths[seq_id] = len(resume.token_ids)
        self._engine.add(seq_id, job, resume)

    def step(self) -> Any:
        output = self._engine.step()
        ends = {done.seq_id: len(done.generated.token_ids) for done in output.finished}
        decoded = []
        for seq_id in {*output.advanced, *ends}:
            end = ends[seq_id] if seq_id in ends else len(self._engine.generated(seq_id).token_ids)
            decoded += [(seq_id, position) for position in range(self._lengths[seq_id], end)]
            self._lengths[seq_id] = end
        crash_points.at("decoding", tokens=by_attempt(decoded))
        return output


def live(order: dict[str, Any]) -> int:
    """One life, as the arena has ordered it; the exit code."""
    os.environ.update(order["env"])
    crash_points.arm(os.environ)
    build = _real if order["real_model"] else _scripted(order)
    with (
        patch("gristmill.compute.find_worker", lambda: build),
        patch("gristmill.local.pipeline.find_worker", lambda: build),
        _disk_that_may_be_full(order["disk_full_flag"]),
        plant(order["planted"]),
    ):
        app(order["argv"])
    return 0


def _scripted(order: dict[str, Any]) -> Callable[[WorkerConfig, Queue, Store], Worker]:
    def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
        engine = ScriptedEngine(max_num_seqs=config.max_num_seqs, step_s=order["step_s"])
        return Worker(engine, queue, store, config, wall=_wall(order["clock_jump_s"]))

    return build


def _real(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
    from gristmill_worker.equip import load_engine

    equipment = load_engine(config)
    engine: Any = WatchedEngine(equipment.engine)
    return Worker(engine, queue, store, config, kv_tokens=equipment.kv_tokens)


def _wall(jump_s: float) -> Callable[[], float]:
    """The time of day, which jumps forth and back by so much every second and a half."""
    began = time.monotonic()

    def wall() -> float:
        is_off = int((time.monotonic() - began) / 1.5) % 2 == 0
        return time.time() + (jump_s if is_off else -jump_s)

    return wall


def _disk_that_may_be_full(flag: str) -> Any:
    """While the file `flag` is there, no byte more goes to a local store."""
    write = local_store.write_atomically

    def write_or_fail(path: Any, chunks: Any) -> int:
        if os.path.exists(flag):
            raise OSError(28, "No space left on device")
        return write(path, chunks)

    return patch.object(local_store, "write_atomically", write_or_fail)
