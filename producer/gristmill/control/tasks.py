"""The control functions as tasks that messages call: ids in, nothing out, any number of times.

A message is only a ring. What there is to do is read from the Ledger each time, so that a message
that is lost, repeated or heard by two costs a moment and nothing else. Work that takes long is done
in slices: one at a time for each batch (ledger/tickets.py), and a slice rings for its next one.
Knows nothing of Celery (celery.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Protocol

from gristmill.control import estimate
from gristmill.control.base import Control
from gristmill.control.dispatch import dispatch
from gristmill.control.read_uploads import ReadUploads
from gristmill.control.sweep import Place, end_if_due, must_end, sweep
from gristmill.control.webhooks import deliver_due
from gristmill.errors import CorruptDocument, GristmillError
from gristmill.ledger import batches, estimates, submissions, tickets
from gristmill.ledger.batch import Batch
from gristmill.ledger.estimates import Estimate
from gristmill.ledger.status import BatchStatus
from gristmill.ledger.tickets import Ticket

log = logging.getLogger(__name__)

DISPATCH, ESTIMATE, FINALIZE, INGEST = "dispatch", "estimate", "finalize", "ingest"
SWEEP, WEBHOOKS = "sweep", "webhooks"
#: Whoever waits for a thread, as dispatch does, waits about so long for a slice to end: longer when
#: a file is so large that it takes long to find the place in it.
SLICE_S = 5.0
#: A task that says nothing for so long hangs, and is left to others.
_MAX_HOLD_S = 900.0


class Send(Protocol):
    def __call__(self, task: str, *ids: str) -> None:
        """Ring for a task; that the broker is away is logged, and no error: the sweep repeats."""


class _Outcome(Enum):
    DONE = auto()
    GOES_ON = auto()
    #: The sweep rings again when the ticket is due.
    LEFT = auto()


class ControlTasks:
    """Any thread may call any method. `stop` makes slices end at their next pause."""

    def __init__(
        self,
        control: Control,
        uploads: ReadUploads,
        send: Send,
        *,
        stop: threading.Event | None = None,
        slice_s: float = SLICE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._uploads = uploads
        self._send = send
        self._stop = stop or threading.Event()
        self._slice_s = slice_s
        self._monotonic = monotonic
        self._held: dict[Ticket, float] = {}
        self._swept = Place()
        self._sweeping, self._delivering = threading.Lock(), threading.Lock()

    def ring_dispatch(self) -> None:
        """There may be room for more Shards."""
        self._send(DISPATCH)

    def dispatch(self) -> None:
        """Send the next Shards to workers."""
        with _faults_told():
            dispatch(self._control)

    def sweep(self) -> None:
        """Ring for all that is due."""
        with _alone(self._sweeping) as is_alone, _faults_told():
            if not is_alone:
                return
            self._ring_uploads()
            pause = _Pause(self._monotonic, self._slice_s, self._stop)
            sweep(self._control, end=self._ring_end, should_pause=pause, place=self._swept)
            with self._control.ledger.write() as conn:
                tickets.forget_old(conn, now=self._control.now)

    def webhooks(self) -> None:
        """Send what receivers are to be told; those that are slow cost half a minute at most."""
        with _alone(self._delivering) as is_alone, _faults_told():
            if is_alone:
                deliver_due(self._control, should_stop=self._stop.is_set)

    def ingest(self, tenant_id: str, batch_id: str, word: str) -> None:
        """Read a slice of the uploaded file of a batch."""
        self._do_slice(Ticket(INGEST, tenant_id, batch_id, word), self._ingest)

    def estimate(self, tenant_id: str, estimate_id: str, word: str) -> None:
        """Read a slice of the file that an estimate is about."""
        self._do_slice(Ticket(ESTIMATE, tenant_id, estimate_id, word), self._estimate)

    def finalize(self, tenant_id: str, batch_id: str, word: str) -> None:
        """Bring a batch that must end a slice nearer to its end."""
        self._do_slice(Ticket(FINALIZE, tenant_id, batch_id, word), self._finalize)

    def keep_tickets(self) -> None:
        """Say that the slices of this process are still worked on: every few seconds."""
        oldest = self._monotonic() - _MAX_HOLD_S
        held = [ticket for ticket, since in self._held.copy().items() if since > oldest]
        if held:
            with self._control.ledger.write() as conn:
                tickets.keep(conn, held, now=self._control.now)

    def _ingest(self, tenant_id: str, batch_id: str) -> _Outcome:
        batch = self._find(tenant_id, batch_id)
        if batch is None or not _waits_to_be_read(batch):
            return _Outcome.DONE
        if not self._uploads.read_slice(batch, self._stop.is_set, slice_s=self._slice_s):
            log.warning(
                "batch of a model that this process does not know batch=%s model=%s: give all "
                "control processes of a broker the same --model",
                batch.id,
                batch.model.name,
            )
            return _Outcome.LEFT
        after = self._find(tenant_id, batch_id)
        if after is not None and _waits_to_be_read(after):
            return _Outcome.GOES_ON
        self.ring_dispatch()
        self._send(WEBHOOKS)  # if the file was refused
        return _Outcome.DONE

    def _estimate(self, tenant_id: str, estimate_id: str) -> _Outcome:
        waiting = self._find_estimate(tenant_id, estimate_id)
        if waiting is None:
            return _Outcome.DONE
        if not self._uploads.estimate_slice(waiting, self._stop.is_set, slice_s=self._slice_s):
            return _Outcome.LEFT
        after = self._find_estimate(tenant_id, estimate_id)
        return _Outcome.DONE if after is None else _Outcome.GOES_ON

    def _finalize(self, tenant_id: str, batch_id: str) -> _Outcome:
        batch = self._find(tenant_id, batch_id)
        if batch is None or not must_end(self._control, batch):
            return _Outcome.DONE
        pause = _Pause(self._monotonic, self._slice_s, self._stop)
        if end_if_due(self._control, batch, should_pause=pause):
            self._send(WEBHOOKS)
            return _Outcome.DONE
        return _Outcome.GOES_ON if pause.was_made else _Outcome.LEFT

    def _do_slice(self, ticket: Ticket, work: Callable[[str, str], _Outcome]) -> None:
        with _faults_told():
            with self._control.ledger.write() as conn:
                held = tickets.take(conn, ticket, now=self._control.now)
            if held is None:
                return  # repeated, or given up for lost and rung again
            self._held[held] = self._monotonic()
            try:
                outcome = work(ticket.tenant_id, ticket.object_id)
            finally:
                del self._held[held]
            self._give_back(held, outcome)

    def _give_back(self, held: Ticket, outcome: _Outcome) -> None:
        if outcome is _Outcome.LEFT:
            return
        following = None
        with self._control.ledger.write() as conn:
            if outcome is _Outcome.GOES_ON:
                following = tickets.go_on(conn, held, now=self._control.now)
            else:
                tickets.finish(conn, held)
        if following is not None:
            self._send_ticket(following)

    def _ring_uploads(self) -> None:
        with self._control.ledger.read() as conn:
            waiting = submissions.list_to_read(conn)
        self._ring(INGEST, waiting)
        self._ring(ESTIMATE, estimate.list_due(self._control))

    def _ring_end(self, control: Control, batch: Batch) -> None:
        if must_end(control, batch):
            self._ring(FINALIZE, [batch])

    def _ring(self, task: str, due: Sequence[Batch | Estimate]) -> None:
        if not due:
            return
        now = self._control.now
        with self._control.ledger.write() as conn:
            rung = [tickets.ring(conn, task, one.tenant_id, one.id, now=now) for one in due]
        for ticket in filter(None, rung):
            self._send_ticket(ticket)

    def _send_ticket(self, ticket: Ticket) -> None:
        self._send(ticket.task, ticket.tenant_id, ticket.object_id, ticket.word)

    def _find(self, tenant_id: str, batch_id: str) -> Batch | None:
        with self._control.ledger.read() as conn:
            return batches.get(conn, tenant_id, batch_id)

    def _find_estimate(self, tenant_id: str, estimate_id: str) -> Estimate | None:
        """One that is not at its end."""
        with self._control.ledger.read() as conn:
            found = estimates.get(conn, tenant_id, estimate_id, now=self._control.now)
        return None if found is None or found.completed_at is not None else found


class _Pause:
    """Asked before each piece of a slice: the first is always done, so that every slice gets on."""

    def __init__(
        self, monotonic: Callable[[], float], slice_s: float, stop: threading.Event
    ) -> None:
        self._monotonic = monotonic
        self._give_way_at = monotonic() + slice_s
        self._stop = stop
        self._is_first = True
        self.was_made = False

    def __call__(self) -> bool:
        was_first, self._is_first = self._is_first, False
        is_late = self._monotonic() >= self._give_way_at and not was_first
        self.was_made = is_late or self._stop.is_set()
        return self.was_made


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[bool]:
    """Whether nothing else of the sort is under way in this process; then nothing joins it."""
    is_alone = lock.acquire(blocking=False)
    try:
        yield is_alone
    finally:
        if is_alone:
            lock.release()


@contextmanager
def _faults_told() -> Iterator[None]:
    """An outage is no error of a task: what was not done is rung for again."""
    try:
        yield
    except CorruptDocument as error:
        log.error("a batch cannot go on reason=%s", error)
    except GristmillError as error:
        if not error.retryable:
            raise
        log.warning("task put off reason=%s", error)


def _waits_to_be_read(batch: Batch) -> bool:
    return batch.status is BatchStatus.VALIDATING and batch.freeze_reason is None
