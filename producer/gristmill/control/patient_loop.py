"""A loop of the control side that waits out outages: the base of the plain one and of Celery's."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod

from gristmill.errors import CorruptDocument, GristmillError
from gristmill.telemetry import NO_METRICS, Metrics

log = logging.getLogger(__name__)

_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 10.0


class PatientLoop(ABC):
    """One thread calls `run`, or `turn` or `turn_patiently`."""

    def __init__(self, metrics: Metrics = NO_METRICS) -> None:
        self._metrics = metrics
        #: Why the last turn failed, for people.
        self.trouble = ""
        self._retry_s = _FIRST_RETRY_S

    @abstractmethod
    def turn(self) -> None:
        """Do what there is to do, and wait a moment for more.

        Raises StoreError and QueueError for an outage, CorruptDocument for what the Store lost.
        """

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
            self._metrics.add("gristmill_retries_total", ("control",))
            time.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
        else:
            self.trouble, self._retry_s = "", _FIRST_RETRY_S

    def run(self, stop: threading.Event) -> None:
        """Turn until `stop` is set, waiting out every outage; what was done stays done."""
        while not stop.is_set():
            try:
                self.turn_patiently()
            except CorruptDocument as error:
                log.error("a batch cannot go on reason=%s", error)
