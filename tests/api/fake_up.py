"""The nursery of commands of `gristmill` with a FakeEngine instead of a model's.

After `pauses_after` rows of an order, or a few more, nothing is decoded any more; 0: all goes on.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from fake_engine import FakeEngine
from local_run import RealClock, make_model_folder
from nursery import serve
from pipeline import fast_folder

import gristmill.compute
from gristmill import crash_points
from gristmill.cli import app
from gristmill.compute import WorkerConfig
from gristmill.models import find_model
from gristmill.queues.base import Queue
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill_worker.worker import Worker

_MODULES = (
    *("gristmill.cli.api", "gristmill.cli.control", "gristmill.cli.key_rings", "gristmill.cli.up"),
    *("gristmill.local.service", "gristmill.process.control", "gristmill.queues.redis"),
    *("gristmill.api.app", "gristmill.client", "psycopg", "uvicorn", "alembic.command"),
)


def live(order: dict[str, Any]) -> int:
    """One command; its exit code."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    crash_points.arm(os.environ)

    def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
        engine = FakeEngine(clock=RealClock(), step_s=0.001)  # type: ignore[arg-type]
        engine.pauses_after = order.get("pauses_after") or None
        return Worker(engine, queue, store, config)

    gristmill.compute.find_worker = lambda: build
    app(order["argv"], prog_name="gristmill")
    return 0


def rehearse() -> None:
    """After this everything is imported, also what is imported late."""
    for name in _MODULES:
        importlib.import_module(name)
    with fast_folder() as folder:
        Tokeniser(find_model(str(make_model_folder(folder / "M")), settings=Settings()))


if __name__ == "__main__":
    rehearse()
    serve(live)
