"""Forks the processes of the arena from one that has imported everything, and reaps them.

An order is a line of JSON on stdin; the answers are `born PID` and, later, `dead PID STATUS`.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

# A pool of threads would not survive the fork.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "services"))
sys.path.insert(0, str(Path(__file__).parent))

from lives import live
from local_run import Desk, make_line
from pipeline import fast_folder

#: What the rehearsal does not need and some order may.
_MODULES = ("gristmill.cli.worker", "gristmill.queues.redis", "gristmill.queues.sqs", "boto3")
_POLL_S = 0.02


def bear(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        said = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = live(order)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(code)


def rehearse() -> None:
    """One small run, after which everything is imported."""
    for name in (*_MODULES, "gristmill.stores.s3", "gristmill.process.worker"):
        importlib.import_module(name)
    with fast_folder() as folder:
        desk = Desk(folder)
        desk.write([make_line("a")])
        desk.run()


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
            print("dead", pid, status, flush=True)
    for pid in children:
        os.kill(pid, 9)


if __name__ == "__main__":
    serve()
