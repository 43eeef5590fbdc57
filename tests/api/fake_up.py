"""`gristmill` with a FakeEngine instead of a model's: `fake_up.py ROWS ARGUMENTS…`.

After so many rows, or a few more, nothing is decoded any more; 0: all goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from fake_engine import FakeEngine
from local_run import RealClock

import gristmill.compute
from gristmill.cli import app
from gristmill.compute import WorkerConfig
from gristmill.queues.base import Queue
from gristmill.stores.base import Store
from gristmill_worker.worker import Worker


def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
    engine = FakeEngine(clock=RealClock(), step_s=0.001)  # type: ignore[arg-type]
    engine.pauses_after = int(sys.argv[1]) or None
    return Worker(engine, queue, store, config)


gristmill.compute.find_worker = lambda: build
app(sys.argv[2:])
