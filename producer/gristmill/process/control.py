"""The control side as a process: what runs in its threads until it is to end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from gristmill.control.base import Control
from gristmill.control.loop import ControlLoop
from gristmill.control.read_uploads import ReadUploads
from gristmill.control.webhooks import WebhookLoop
from gristmill.models import Model
from gristmill.process.loop_thread import LoopThread


class ControlProcess(Protocol):
    @property
    def control(self) -> Control: ...

    @property
    def troubles(self) -> tuple[str, ...]:
        """What it waits out just now, for people; may be read from any thread."""

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. Raises what ended it before."""


class LoopedControl:
    """Without a broker: a thread for the loop, one for webhooks, one for the uploaded files."""

    def __init__(
        self, control: Control, catalogue: Sequence[Model], *, sends_webhooks: bool = True
    ) -> None:
        self.control = control
        self._loop = ControlLoop(control)
        self._uploads = ReadUploads(control, catalogue)
        self._webhooks = WebhookLoop(control)
        self._sends_webhooks, self._reads_uploads = sends_webhooks, bool(catalogue)

    @property
    def troubles(self) -> tuple[str, ...]:
        loops = (self._loop, self._uploads, self._webhooks)
        return tuple(filter(None, (loop.trouble for loop in loops)))

    def run(self, stop: threading.Event) -> None:
        threads = []
        if self._sends_webhooks:
            threads.append(LoopThread(self._webhooks.run, stop, name="webhooks"))
        if self._reads_uploads:
            threads.append(LoopThread(self._uploads.run, stop, name="ingest"))
        self._loop.run(stop)
        self._uploads.wake()
        for thread in threads:
            thread.join()


class WebhookControl:
    """Sends webhooks and does nothing else, where only this process has a way out."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self._webhooks = WebhookLoop(control)

    @property
    def troubles(self) -> tuple[str, ...]:
        return tuple(filter(None, (self._webhooks.trouble,)))

    def run(self, stop: threading.Event) -> None:
        self._webhooks.run(stop)
