"""The control side as a loop: dispatch, take Bells, and every few seconds the sweep.

Two of them on one Ledger are harmless: every change is one conditional update, and what both do
twice has no effect.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from gristmill.control.accept import take_bells
from gristmill.control.base import Control
from gristmill.control.dispatch import dispatch
from gristmill.control.sweep import sweep
from gristmill.errors import CorruptDocument, GristmillError

log = logging.getLogger(__name__)

_SWEEP_INTERVAL_S = 2.0
#: How long one look for Bells waits, and so how soon a request to stop is seen.
_BELL_WAIT_S = 0.2
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 10.0


class ControlLoop:
    """One thread calls `run` or `turn`."""

    def __init__(
        self, control: Control, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._control = control
        self._monotonic = monotonic
        self._sweep_at = monotonic() + _SWEEP_INTERVAL_S
        #: Why the last turn failed, for people.
        self.trouble = ""
        self._retry_s = _FIRST_RETRY_S

    def turn(self) -> None:
        """Send what there is room for, take the Bells that wait, sweep if it is time.

        Raises StoreError and QueueError for an outage, CorruptDocument for what the Store lost.
        """
        dispatch(self._control)
        take_bells(self._control, wait_s=_BELL_WAIT_S)
        if self._monotonic() >= self._sweep_at:
            self._sweep_at = self._monotonic() + _SWEEP_INTERVAL_S
            sweep(self._control)

    def turn_patiently(self) -> None:
        """A turn in which an outage of the queue or the store is no error, but a pause."""
        try:
            self.turn()
        except GristmillError as error:
            if not error.retryable:
                raise
            if str(error) != self.trouble:
                log.warning("control waits reason=%s", error)
            self.trouble = str(error)
            time.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
        else:
            self.trouble, self._retry_s = "", _FIRST_RETRY_S

    def take_remaining_bells(self) -> None:
        """All that have rung so far."""
        while take_bells(self._control):
            pass

    def run(self, stop: threading.Event) -> None:
        """Turn until `stop` is set, waiting out every outage; what was done stays done."""
        while not stop.is_set():
            try:
                self.turn_patiently()
            except CorruptDocument as error:
                log.error("a batch cannot go on reason=%s", error)
