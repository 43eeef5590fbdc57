"""A Worker in a thread of its own, so that Ctrl-C and the control functions have the first one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from gristmill.compute import ComputeWorker


class WorkerThread:
    """Runs a Worker while entered; leaving drains it."""

    def __init__(
        self, worker: ComputeWorker, *, on_hang: Callable[[], None] = lambda: None
    ) -> None:
        self._worker = worker
        self._on_hang = on_hang
        self._stop = threading.Event()
        self._error: BaseException | None = None
        # A daemon, so that a second Ctrl-C ends the process.
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._worker.run(self._stop, self._on_hang)
        except BaseException as error:
            self._error = error
