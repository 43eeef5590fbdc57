"""Forks processes from one that has imported everything, which spares each of them seconds.

Both ends of it: tests order processes of a `Nursery`, whose script calls `serve`. An order is a
line of JSON on its stdin; the answers are `born PID` and, later, `dead PID EXITCODE`.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PATIENCE_S = 120.0
_POLL_S = 0.02


class Nursery:
    """Any thread may call any method."""

    def __init__(self, script: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A pool of threads would not survive the fork.
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._born: queue.Queue[int] = queue.Queue()
        self._codes: dict[int, int] = {}
        self._ordering, self._changed = threading.Lock(), threading.Condition()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        threading.Thread(target=self._hear, daemon=True).start()

    def bear(self, order: dict[str, Any]) -> int:
        """The pid. What it says goes to the files that are the order's `out` and `err`."""
        assert self._process.stdin is not None
        with self._ordering:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return self._born.get(timeout=_PATIENCE_S)

    def exit_code(self, pid: int) -> int | None:
        """As subprocess tells it; None while it lives."""
        return self._codes.get(pid)

    def wait(self, pid: int, timeout: float | None = None) -> int:
        """Its exit code."""
        with self._changed:
            assert self._changed.wait_for(lambda: pid in self._codes, timeout), "it does not end"
            return self._codes[pid]

    def close(self) -> None:
        """Ends what still lives, too."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, pid, *code = line.split()
            if word == "born":
                self._born.put(int(pid))
                continue
            with self._changed:
                self._codes[int(pid)] = int(code[0])
                self._changed.notify_all()


def serve(live: Callable[[dict[str, Any]], int]) -> None:
    """In the script, until its stdin ends. `live` does what an order says; its exit code."""
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
                pid = _fork(json.loads(line), live)
                children.add(pid)
                print("born", pid, flush=True)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            children.discard(pid)
            print("dead", pid, os.waitstatus_to_exitcode(status), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _fork(order: dict[str, Any], live: Callable[[dict[str, Any]], int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = live(order)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(code)
