"""The control side as a loop: dispatch, take Bells, and every few seconds the sweep.

Two of them on one Ledger are harmless: every change is one conditional update, and what both do
twice has no effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gristmill.control.accept import take_bells
from gristmill.control.base import Control
from gristmill.control.dispatch import dispatch
from gristmill.control.patient_loop import PatientLoop
from gristmill.control.sweep import sweep

_SWEEP_INTERVAL_S = 2.0
#: How long one look for Bells waits, and so how soon a request to stop is seen.
BELL_WAIT_S = 0.2


class ControlLoop(PatientLoop):
    """All of it in one thread, for one process or a few. `bell_loop.py` is its like for Celery."""

    def __init__(
        self, control: Control, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(control.telemetry.metrics)
        self._control = control
        self._monotonic = monotonic
        self._sweep_at = monotonic() + _SWEEP_INTERVAL_S

    def turn(self) -> None:
        """Send what there is room for, take the Bells that wait, sweep if it is time."""
        dispatch(self._control)
        take_bells(self._control, wait_s=BELL_WAIT_S)
        if self._monotonic() >= self._sweep_at:
            self._sweep_at = self._monotonic() + _SWEEP_INTERVAL_S
            sweep(self._control)

    def take_remaining_bells(self) -> None:
        """All that have rung so far."""
        while take_bells(self._control):
            pass
