"""What a Queue promises: at least once, one live Lease for a message, never the truth.

A message may be lost, repeated or wiped at any moment; a sweep of the control side repairs that.
A message is a pointer, never data. A Bell is simply a message on `types.CONTROL_LANE`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gristmill.errors import QueueRefused

#: The Lane of what any Worker of the model can run, and of all work while the fleet is uniform.
BULK_LANE = "bulk"
#: Messages are pointers of a few hundred bytes; whoever needs more puts it into the Store.
MAX_BODY_BYTES = 4096
#: The longest delay of a release, which is the longest that SQS knows.
MAX_DELAY_S = 12 * 3600.0

_LANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's timed hold on one message. Each delivery of a message is another Lease.

    `id` is a word of the Queue that made it, and differs between any two Leases of that Queue.
    """

    id: str
    lane: str
    body: bytes
    #: Seconds from receive for which it can be renewed (SQS has an end). The holder checkpoints
    #: before, releases, and receives again.
    max_hold_s: float = math.inf


@dataclass(frozen=True, slots=True)
class LaneStats:
    """What lies on a Lane. Some servers count roughly, so nothing exact may rest on it."""

    #: Messages that wait, those released with a delay too.
    visible: int
    #: Messages under a Lease that has not ended.
    leased: int
    #: Messages put aside for good by `dead_letter`.
    dead: int
    #: Seconds since the oldest waiting message was sent. None: nothing waits, or it is not known.
    oldest_age_s: float | None


class Queue(Protocol):
    """Any thread may call any method. A Lease lasts `lease_s` from receive or renewal.

    All methods raise QueueError when the server cannot do what was asked: QueueRefused when it
    will say no again (no permission, a bad Lane, a body too large), another QueueError when the
    same call may work later. No call blocks for long: every wait on the server has a limit.
    How often a message was delivered is nowhere told, because no such count can be trusted.
    """

    @property
    def lease_s(self) -> float:
        """How long a Lease lasts without renewal."""

    def send(
        self,
        lane: str,
        body: bytes,
        *,
        message_id: str | None = None,
        num_rows: int = 1,
        num_tokens: int = 0,
        tenant_id: str = "",
        makes_lane: bool = True,
    ) -> None:
        """Put a message at the end of a Lane: at most MAX_BODY_BYTES of UTF-8 text.

        The text is what XML can hold: no control characters but tabs and ends of lines.
        While a message of the same `message_id` waits there, this has no effect, so that a sender
        can try again and a sweep can ring twice. One under a Lease does not count: a sweep must
        be able to ring past a holder that hangs. Servers that cannot tell (SQS) may double the
        message. `num_rows` and `num_tokens` are what `receive` measures; `tenant_id` lets servers
        that can (SQS) be fair between tenants.

        A Lane is made by whoever uses it first, unless `makes_lane` is False: then the message goes
        nowhere, because nobody has listened on that Lane, or nobody does any more.
        """

    def receive(
        self,
        lanes: str | Sequence[str],
        max_messages: int,
        wait_s: float,
        *,
        max_rows: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Lease]:
        """Take messages off the first Lane that has any ready, then off the next; oldest first.

        Waits at most `wait_s` (SQS: the next whole second) for the first message, and for no
        second one. Takes no more than
        `max_messages`, and the rest only while they fit together into `max_rows` and `max_tokens`;
        the first one is taken even if it does not, or a large message would wait for ever. With no
        room at all (a limit of 0 or less) nothing is taken.
        """

    def renew(self, leases: Iterable[Lease]) -> set[str]:
        """Begin these Leases anew. The ids of those that are still owned; the rest are lost."""

    def ack(self, *leases: Lease) -> bool:
        """Remove messages for good. False when a Lease was lost; that one has no effect."""

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        """Give the message back, to be seen after `delay_s` (at most MAX_DELAY_S).

        False, and no effect, when the Lease is lost.
        """

    def dead_letter(self, lease: Lease, reason: str) -> bool:
        """Put a message aside that nobody can use, for people to look at, and never deliver it.

        False, and no effect, when the Lease is lost.
        """

    def stats(self, lane: str) -> LaneStats: ...

    def remove_lane(self, lane: str) -> None:
        """Take a Lane away, with all that lies on it; no error when there is none."""

    def close(self) -> None:
        """Let go of connections. Leases that are held stay as they are, and end in time."""


def is_lane(name: str) -> bool:
    """Whether every backend can have a Lane of this name."""
    return _LANE.fullmatch(name) is not None


def check_lane(lane: str) -> None:
    """Raises QueueRefused unless every backend can have a Lane of this name."""
    if not is_lane(lane):
        raise QueueRefused(
            f"{lane[:100]!r} is no name of a Lane: letters, digits, '_' and '-', 48 at most, "
            "the first a letter or digit."
        )


def check_body(body: bytes) -> None:
    """Raises QueueRefused unless this can be a message."""
    if len(body) > MAX_BODY_BYTES:
        raise QueueRefused(
            f"A message of {len(body):,} bytes is refused, {MAX_BODY_BYTES:,} are allowed: "
            "put the content into the Store and send a pointer."
        )


def as_lanes(lanes: str | Sequence[str]) -> list[str]:
    """The Lanes of `receive`, each once, as a list. Raises QueueRefused for a bad name."""
    found = [lanes] if isinstance(lanes, str) else list(dict.fromkeys(lanes))
    for lane in found:
        check_lane(lane)
    return found


@dataclass(slots=True)
class Room:
    """How much more one `receive` may take. None means any number."""

    num_messages: int
    num_rows: int | None
    num_tokens: int | None
    is_untouched: bool = True

    @property
    def is_none(self) -> bool:
        limits = (self.num_messages, self.num_rows, self.num_tokens)
        return any(limit is not None and limit <= 0 for limit in limits)

    def take(self, num_rows: int, num_tokens: int) -> bool:
        """Make room for a message; False when it has to wait for another receive."""
        if self.is_none or not (self.is_untouched or self._fits(num_rows, num_tokens)):
            return False
        self.num_messages -= 1
        if self.num_rows is not None:
            self.num_rows -= num_rows
        if self.num_tokens is not None:
            self.num_tokens -= num_tokens
        self.is_untouched = False
        return True

    def _fits(self, num_rows: int, num_tokens: int) -> bool:
        return (self.num_rows is None or num_rows <= self.num_rows) and (
            self.num_tokens is None or num_tokens <= self.num_tokens
        )
