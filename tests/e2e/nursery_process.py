"""The nursery of commands of `gristmill`, as the installed one runs them but for the Engine.

Which is a GatedEngine.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from aws_calls import record_calls
from fake_engine import FakeEngine
from local_run import BYTES, RealClock, make_model_folder
from nursery import serve
from pipeline import fast_folder

import gristmill.compute
from gristmill.cli import app
from gristmill.compute import WorkerConfig
from gristmill.models import find_model
from gristmill.queues.base import Queue
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill_worker import announcer
from gristmill_worker.engine.base import StepOutput
from gristmill_worker.worker import Worker

_MODULES = (
    *("gristmill.cli.api", "gristmill.cli.control", "gristmill.cli.keys", "gristmill.cli.up"),
    *("gristmill.cli.worker", "gristmill.local.service", "gristmill.process.celery"),
    *("gristmill.process.worker", "gristmill.queues.redis", "gristmill.queues.sqs"),
    *("gristmill.stores.s3", "celery.concurrency.thread", "kombu.transport.redis", "psycopg"),
    *("kombu.transport.SQS", "uvicorn", "pycurl"),
)
_STEP_S = 0.01
_HELD = tuple(BYTES.index(character) for character in "!hold")


class GatedEngine(FakeEngine):
    """While the file `gate` is there, rows whose prompt begins with `!hold` do not get on."""

    def __init__(self, gate: Path) -> None:
        super().__init__(max_num_seqs=64, clock=RealClock(), step_s=_STEP_S)  # type: ignore[arg-type]
        self._gate = gate

    def step(self) -> StepOutput:
        held = {}
        if self._gate.exists():
            held = {i: one for i, one in self.live.items() if one.job.prompt_ids[:5] == _HELD}
        self.live = {i: one for i, one in self.live.items() if i not in held}
        output = super().step()
        self.live |= held
        return output


def live(order: dict[str, Any]) -> int:
    """One command; its exit code."""
    os.environ.update(order["environ"])
    if "AWS_CALLS" in os.environ:
        record_calls(Path(os.environ["AWS_CALLS"]) / f"{order['argv'][0]}.calls")

    def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
        return Worker(GatedEngine(Path(order["gate"])), queue, store, config)

    gristmill.compute.find_worker = lambda: build
    if beat_every_s := order["environ"].get("TEST_BEAT_EVERY_S"):
        announcer.BEAT_EVERY_S = float(beat_every_s)
    app(order["argv"])
    return 0


def rehearse() -> None:
    """After this everything is imported, also what is imported late."""
    for name in _MODULES:
        importlib.import_module(name)
    with fast_folder() as folder:
        model = find_model(str(make_model_folder(folder / "M")), settings=Settings())
        Tokeniser(model)


if __name__ == "__main__":
    rehearse()
    serve(live)
