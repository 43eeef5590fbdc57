"""What a control process does beside its Celery worker: hears Bells, and says that it lives."""

from __future__ import annotations

import time
from collections.abc import Callable

from gristmill.control.accept import take_bells
from gristmill.control.base import Control
from gristmill.control.loop import BELL_WAIT_S
from gristmill.control.patient_loop import PatientLoop
from gristmill.control.read_uploads import TELL_MODELS_EVERY_S, ReadUploads
from gristmill.control.tasks import ControlTasks
from gristmill.ledger.tickets import HOLD_S


class BellLoop(PatientLoop):
    """Accepts results itself: Bells come from workers, which may not reach the broker."""

    def __init__(
        self,
        control: Control,
        tasks: ControlTasks,
        uploads: ReadUploads,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(control.telemetry.metrics)
        self._control = control
        self._tasks = tasks
        self._uploads = uploads
        self._monotonic = monotonic
        self._keep_at = self._tell_models_at = monotonic()

    def turn(self) -> None:
        """Take the Bells that wait; room on the Lanes is rung for, not filled here."""
        now = self._monotonic()
        if now >= self._tell_models_at:
            self._uploads.tell_models()
            self._tell_models_at = now + TELL_MODELS_EVERY_S
        if now >= self._keep_at:
            self._tasks.keep_tickets()
            self._keep_at = now + HOLD_S / 4
        if take_bells(self._control, wait_s=BELL_WAIT_S):
            self._tasks.ring_dispatch()
