"""Forks commands of `gristmill` from a process that has imported everything, and reaps them.

An order is a line of JSON on stdin; the answers are `born PID` and, later, `dead PID STATUS`. The
Engine is a GatedEngine, everything else is what the installed command runs.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

# A pool of threads would not survive the fork.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from fake_engine import FakeEngine
from local_run import BYTES, make_model_folder
from pipeline import fast_folder

import gristmill.compute
from gristmill.cli import app
from gristmill.compute import WorkerConfig
from gristmill.models import find_model
from gristmill.queues.base import Queue
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings
from gristmill.stores.base import Store
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
_POLL_S = 0.02
_HELD = tuple(BYTES.index(character) for character in "!hold")


class RealClock:
    """Steps of the Engine take their time."""

    def __call__(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)


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


def bear(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(order["environ"])

        def build(config: WorkerConfig, queue: Queue, store: Store) -> Worker:
            return Worker(GatedEngine(Path(order["gate"])), queue, store, config)

        gristmill.compute.find_worker = lambda: build
        app(order["argv"])
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        os._exit(code)


def rehearse() -> None:
    """After this everything is imported, also what is imported late."""
    for name in _MODULES:
        importlib.import_module(name)
    with fast_folder() as folder:
        model = find_model(str(make_model_folder(folder / "M")), settings=Settings())
        Tokeniser(model)


def serve() -> None:
    rehearse()
    children: set[int] = set()
    rest = b""
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                pid = bear(json.loads(line))
                children.add(pid)
                print("born", pid, flush=True)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            children.discard(pid)
            print("dead", pid, os.waitstatus_to_exitcode(status), flush=True)
    for pid in children:
        os.kill(pid, 9)


if __name__ == "__main__":
    serve()
