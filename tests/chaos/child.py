"""Makes local runs with a FakeEngine, each in a process of its own that can be killed.

Reads "FOLDER STEP_S FIFO KILL_AFTER" from stdin, forks, and answers with the pid and later the
wait status. The fork writes to the FIFO what it is about to do, and gets SIGKILL after so many of
these events (0: never). Forking spares each run the seconds that imports take. The folder holds
in.jsonl; every token decoded goes to decoded.log at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A pool of threads would not survive the fork.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from local_run import Desk, make_line
from pipeline import fast_folder

import gristmill.stores.local as stores_local
from gristmill.ledger.ledger import Ledger
from gristmill.local import Progress


def run(folder: Path, step_s: float, out: int, kill_after: int) -> None:
    """One life, which tells of its progress and of each write to disk and ledger."""

    def say(event: str) -> None:
        nonlocal num_said
        with speaking:
            os.write(out, f"{event}\n".encode())
            num_said += 1
            if num_said == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

    def announced(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            say(event)
            try:
                return function(*args, **kwargs)
            finally:
                say(f"{event}-done")

        return call

    def on_decode(prompt: tuple[int, ...], position: int) -> None:
        os.write(log, f"{bytes(prompt).hex()} {position}\n".encode())

    def on_progress(progress: Progress) -> None:
        say(
            f"{progress.phase} total={progress.total} completed={progress.completed} "
            f"failed={progress.failed}"
        )

    num_said, speaking = 0, threading.Lock()
    log = os.open(folder / "decoded.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # A death between two of these events is a death in the middle of something.
    stores_local.os.fsync = announced("fsync", os.fsync)  # type: ignore[attr-defined]
    Ledger.write = announced("write", Ledger.write)  # type: ignore[method-assign]
    summary = Desk(folder, on_decode=on_decode, step_s=step_s).run(on_progress=on_progress)
    say(f"{summary.status} total={summary.total} failed={summary.failed}")


def serve() -> None:
    with fast_folder() as folder:
        rehearsal = Desk(folder)
        rehearsal.write([make_line("a")])
        rehearsal.run()
    print("ready", flush=True)
    for request in sys.stdin:
        folder_name, step_s, fifo, kill_after = request.split()
        pid = os.fork()
        if pid == 0:
            try:
                out = os.open(fifo, os.O_WRONLY)
                run(Path(folder_name), float(step_s), out, int(kill_after))
                os._exit(0)
            finally:
                os._exit(1)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


serve()
