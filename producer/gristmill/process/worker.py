"""A Worker as a process of its own: loads, serves, drains, and ends with a code that says why."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from collections.abc import Callable

from gristmill.cli.failures import ExitCode
from gristmill.compute import ComputeWorker
from gristmill.errors import GristmillError
from gristmill.process.health import Health
from gristmill.process.signals import StopSignals

log = logging.getLogger(__name__)

#: How soon the main thread sees that the Worker has ended; signals come through at once.
_POLL_S = 0.2


class WorkerProcess:
    """The main thread keeps to signals, so that a step of the Engine does not hold them up."""

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals
        self._worker: ComputeWorker | None = None
        self._error: BaseException | None = None

    def health(self) -> Health:
        """May be read from any thread."""
        if self._worker is None:
            return Health(live=True, ready=False, state="loading")
        health = self._worker.health
        is_draining = health.is_draining or self._signals.stop.is_set()
        return Health(
            live=health.is_live,
            ready=health.is_live and not is_draining and not health.troubles,
            state="draining" if is_draining else "running",
            troubles=health.troubles,
        )

    def serve(self, build: Callable[[], ComputeWorker]) -> ExitCode:
        """Work until a signal, or until there is nothing to do and that is the end.

        Raises what building the Worker raises, and what ended it if that is no outage.
        """
        worker = build()
        self._signals.hold()
        self._worker = worker
        log.info("worker ready %s", worker.equipment)
        thread = threading.Thread(target=self._run, args=(worker,), name="engine", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_S)
        if self._error is None:
            reason = "signal" if self._signals.stop.is_set() else "nothing left to do"
            log.info("worker ended, its work is saved reason=%s", reason)
            return ExitCode.OK
        if isinstance(self._error, GristmillError) and self._error.retryable:
            log.error("worker ends reason=%s", self._error)
            return ExitCode.OUTAGE
        raise self._error

    def _run(self, worker: ComputeWorker) -> None:
        try:
            worker.run(self._signals.stop, end_hanging)
        except BaseException as error:
            self._error = error


def end_hanging() -> None:
    """End this process, whose engine hangs: its Leases end by themselves, and somebody else goes
    on from what is stored."""
    faulthandler.dump_traceback(all_threads=True)
    os._exit(ExitCode.HUNG)
