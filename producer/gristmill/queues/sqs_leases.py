"""The Leases that this process holds on SQS, and asking the same of many of them at once."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from botocore.exceptions import ClientError

from gristmill.errors import QueueError
from gristmill.queues.base import Lease
from gristmill.queues.sqs_lanes import SqsLanes, error_code, is_gone

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import BatchResultErrorEntryTypeDef

#: Most entries of one request (SQS's own limit).
MAX_BATCH = 10
#: From its receive on, SQS hides a message for so long at most, whatever is renewed.
MAX_HIDDEN_S = 12 * 3600
#: An hour is left to checkpoint, release and receive again.
MAX_HOLD_S = 11 * 3600.0
#: How a server refuses a whole request for one handle that is dead, or hidden for 12 hours.
_LOST = ("InvalidParameterValue", "ReceiptHandleIsInvalid", "MessageNotInflight")


@dataclass(slots=True)
class Held:
    """What this process knows of a message that it received."""

    lane: str
    queue_url: str
    handle: str
    #: On the own clock, before the request that received it was sent.
    received_at: float
    ends_at: float

    def hidden_left_s(self, now: float) -> int:
        """How much longer SQS lets the message be hidden."""
        return max(0, int(self.received_at + MAX_HIDDEN_S - now))


class Ask(Protocol):
    """Asks the server the same of up to MAX_BATCH messages; returns the entries that failed."""

    def __call__(
        self, queue_url: str, batch: Mapping[str, Held], /
    ) -> Iterable[BatchResultErrorEntryTypeDef]: ...


class SqsLeases:
    """Knows by the own clock which Leases are lost, for SQS would let an old one do harm."""

    def __init__(self, lanes: SqsLanes, lease_s: int, clock: Callable[[], float]) -> None:
        self._lanes = lanes
        self._lease_s = lease_s
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._numbers = itertools.count()
        self._mark = secrets.token_hex(4)
        self._lock = threading.Lock()

    def begin(self, lane: str, url: str, handle: str, body: bytes, asked_at: float) -> Lease:
        """A Lease on a message that was just received; `asked_at` is on the own clock."""
        lease_id = f"{self._mark}-{next(self._numbers)}"
        with self._lock:
            self._held[lease_id] = Held(lane, url, handle, asked_at, asked_at + self._lease_s)
        return Lease(lease_id, lane, body, max_hold_s=MAX_HOLD_S)

    def live(self, leases: Iterable[Lease]) -> dict[str, Held]:
        """Those that have not ended, by id; forgets all that have."""
        now = self._clock()
        with self._lock:
            for lease_id in [i for i, held in self._held.items() if held.ends_at <= now]:
                del self._held[lease_id]
            return {lease.id: self._held[lease.id] for lease in leases if lease.id in self._held}

    def begin_anew(self, lease_ids: Iterable[str], asked_at: float) -> None:
        with self._lock:
            for lease_id in lease_ids:
                if held := self._held.get(lease_id):
                    hidden_until = held.received_at + MAX_HIDDEN_S
                    held.ends_at = min(asked_at + self._lease_s, hidden_until)

    def forget(self, lease_ids: Iterable[str]) -> None:
        with self._lock:
            for lease_id in lease_ids:
                self._held.pop(lease_id, None)

    def change(self, leases: Iterable[Lease], doing: str, ask: Ask) -> set[str]:
        """The ids of those that the server agreed to; the rest of them are lost.

        What fails for the server's own reasons is asked for again by itself, and raises QueueError
        when it fails once more; by then all others have been dealt with.
        """
        done: set[str] = set()
        unclear: dict[str, Held] = {}
        live = self.live(leases)
        for url, lane, batch in _batches(live):
            failed = self._ask(url, lane, batch, doing, ask)
            lost = {entry["Id"] for entry in failed if entry["SenderFault"]}
            doubtful = {entry["Id"] for entry in failed} - lost
            done |= batch.keys() - lost - doubtful
            unclear |= {lease_id: batch[lease_id] for lease_id in doubtful}
        reasons = []
        for lease_id, held in unclear.items():
            again = self._ask(held.queue_url, held.lane, {lease_id: held}, doing, ask)
            if not again:
                done.add(lease_id)
            reasons += [f"{e['Code']}: {e.get('Message')}" for e in again if not e["SenderFault"]]
        if reasons:
            raise QueueError(f"{doing} {len(reasons)} messages failed twice ({reasons[0]}).")
        self.forget(live.keys() - done)
        return done

    def _ask(
        self, url: str, lane: str, batch: Mapping[str, Held], doing: str, ask: Ask
    ) -> list[BatchResultErrorEntryTypeDef]:
        with self._lanes.explained(doing, lane):
            try:
                return list(ask(url, batch))
            except ClientError as error:
                code = error_code(error)
                if not is_gone(error) and code not in _LOST:
                    raise
                if code in _LOST and len(batch) > 1:  # which one is it?
                    return [
                        failed
                        for lease_id, held in batch.items()
                        for failed in self._ask(url, lane, {lease_id: held}, doing, ask)
                    ]
                return [{"Id": lease_id, "SenderFault": True, "Code": code} for lease_id in batch]


def _batches(held: Mapping[str, Held]) -> Iterator[tuple[str, str, dict[str, Held]]]:
    """Groups of one queue each, with its URL and Lane, small enough for one request."""
    by_queue = sorted(held.items(), key=lambda item: item[1].queue_url)
    for url, group in itertools.groupby(by_queue, key=lambda item: item[1].queue_url):
        items = list(group)
        for begin in range(0, len(items), MAX_BATCH):
            batch = dict(items[begin : begin + MAX_BATCH])
            yield url, items[0][1].lane, batch
