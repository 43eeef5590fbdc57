"""The control side as a Celery worker with its beat, in threads beside a loop that hears Bells."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery
from celery.beat import Scheduler, Service
from celery.worker import state

from gristmill.control.base import Control
from gristmill.control.bell_loop import BellLoop
from gristmill.control.broker import Broker
from gristmill.control.celery import (
    CONTROL_QUEUE,
    INGEST_QUEUE,
    WEBHOOKS_QUEUE,
    add_tasks,
    make_app,
    reach,
    sender,
)
from gristmill.control.read_uploads import ReadUploads
from gristmill.control.tasks import ControlTasks
from gristmill.errors import QueueError
from gristmill.models import Model
from gristmill.process.loop_thread import LoopThread

#: What beat cannot ring for, while its broker is away, is said so often.
_BEAT_LOG_S = 60.0
#: Slices at once. What they wait for is the Store, the database and the Rust side of tokenizers.
_NUM_THREADS = 4


class CeleryControl:
    """One of them in a process: Celery keeps what is under way in its modules."""

    def __init__(
        self,
        control: Control,
        catalogue: Sequence[Model],
        broker: Broker,
        *,
        sends_webhooks: bool = True,
    ) -> None:
        """Raises QueueError when the broker cannot be reached."""
        self.control = control
        self._app = make_app(broker, rings_webhooks=sends_webhooks)
        reach(self._app, broker)
        self._uploads = ReadUploads(control, catalogue)
        # Whoever knows no model leaves the files to those who do.
        self._queues = [
            CONTROL_QUEUE,
            *([WEBHOOKS_QUEUE] if sends_webhooks else []),
            *([INGEST_QUEUE] if catalogue else []),
        ]
        self._threads: _CeleryThreads | None = None
        self._loop: BellLoop | None = None

    @property
    def troubles(self) -> tuple[str, ...]:
        if self._threads is None or self._loop is None:
            return ("It is starting.",)
        return tuple(filter(None, (self._loop.trouble, self._threads.trouble)))

    def run(self, stop: threading.Event) -> None:
        self._uploads.load()
        tasks = ControlTasks(self.control, self._uploads, sender(self._app), stop=stop)
        add_tasks(self._app, tasks)
        self._loop = BellLoop(self.control, tasks, self._uploads)
        self._threads = _CeleryThreads(self._app, stop, queues=self._queues)
        self._loop.run(stop)
        self._threads.end()


class _CeleryThreads:
    """A worker and its beat, from the start."""

    def __init__(self, app: Celery, stop: threading.Event, *, queues: list[str]) -> None:
        self._worker: Any = app.WorkController(
            app=app,
            pool="threads",
            concurrency=_NUM_THREADS,
            queues=queues,
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
        )
        # Nothing of the schedule is worth keeping: whatever is due is found in the Ledger.
        self._beat = Service(app, max_interval=1, scheduler_cls=Scheduler)
        logging.getLogger("celery.beat").addFilter(OutageFilter())
        self._worker_thread = LoopThread(self._run_worker, stop, name="celery")
        self._beat_thread = LoopThread(self._run_beat, stop, name="beat")

    @property
    def trouble(self) -> str:
        """For people; may be read from any thread."""
        consumer = self._worker.consumer
        return "" if consumer and consumer.connection else "The broker is not connected."

    def end(self) -> None:
        """After `stop` was set: wait for the slices under way. Raises what ended either."""
        self._beat.stop()  # and not waited for, as it may be waiting for a broker that is away
        self._beat_thread.raise_error()
        state.should_stop = os.EX_OK
        if self._worker.hub is not None:
            self._worker.hub.call_soon(_nothing)  # which wakes it
        self._worker_thread.join()

    def _run_worker(self, stop: threading.Event) -> None:
        self._worker.start()
        if not stop.is_set():
            raise QueueError("The Celery worker has ended by itself; the log above says why.")

    def _run_beat(self, stop: threading.Event) -> None:
        self._beat.start()


class OutageFilter(logging.Filter):
    """Lets beat say once a minute, and without its stack, that it cannot ring.

    By itself it says so for each ring, three times a second, with all of its stack.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._said_at = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith("Message Error"):
            return True
        if self._monotonic() - self._said_at < _BEAT_LOG_S:
            return False
        self._said_at = self._monotonic()
        error = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        record.msg, record.args, record.exc_info = "tasks not rung for reason=%s", (error,), None
        return True


def _nothing() -> None:
    pass
