"""What a Queue promises: at least once, one live Lease for a message, never the truth.

A message may be lost, repeated or wiped at any moment; a sweep of the control side repairs that.
A Bell is simply a message on `types.CONTROL_LANE`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

#: The Lane of all Shards, until a Router tells size classes apart.
BULK_LANE = "bulk"


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's timed hold on one message. Each delivery of a message is another Lease."""

    id: str
    lane: str
    body: bytes
    #: On the queue's own clock; who holds the Lease goes by the time it last renewed.
    expires_at: float


@dataclass(frozen=True, slots=True)
class LaneStats:
    """Messages that wait on a Lane (those released with a delay too), and those under a Lease."""

    visible: int
    leased: int


class Queue(Protocol):
    """Any thread may call any method. A Lease lasts `lease_s` from receive or renewal."""

    @property
    def lease_s(self) -> float:
        """How long a Lease lasts without renewal."""

    def send(self, lane: str, body: bytes) -> None:
        """Put a message at the end of a Lane."""

    def receive(self, lane: str, max_messages: int, wait_s: float) -> list[Lease]:
        """Take up to `max_messages`, oldest first; wait at most `wait_s` for the first one."""

    def renew(self, leases: Iterable[Lease]) -> set[str]:
        """Begin these Leases anew. The ids of those that are still owned; the rest are lost."""

    def ack(self, lease: Lease) -> bool:
        """Remove the message for good. False, and no effect, when the Lease is lost."""

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        """Give the message back, to be seen after `delay_s`. False when the Lease is lost."""

    def stats(self, lane: str) -> LaneStats: ...
