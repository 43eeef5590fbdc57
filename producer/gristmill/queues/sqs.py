"""A Queue on Amazon SQS, or on a server that speaks its protocol.

The visibility timeout is the Lease. SQS does not check who holds a message: with an old receipt
handle it may renew or remove what another received. So a Lease that ended on the clock of this
process is lost here, and nothing is asked of the server any more.

SQS cannot tell whether a `message_id` waits, and repeats a send whose reply was lost, so a message
may lie there twice; redeliveries, too, happen on their own. Both cost a look into the Store, where
the second holder finds the work done or owned. What is lost, the sweep rings again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gristmill.aws import aws_session, client_config, parse_aws_url
from gristmill.errors import QueueError, UsageError
from gristmill.messages import CONTROL_LANE
from gristmill.queues.base import LaneStats, Lease, Room, as_lanes, check_body
from gristmill.queues.sqs_lanes import SqsLanes, count_messages, is_gone
from gristmill.queues.sqs_leases import MAX_BATCH, MAX_HOLD_S, Ask, Held, SqsLeases
from gristmill.queues.sqs_message import SIZES, new_dead_letter, new_message, sizes_of

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

T = TypeVar("T")

#: The longest that SQS waits for a message in one request.
_MAX_POLL_S = 20
#: A Lease counts from before the poll that gave it, which takes a second at least.
_MIN_LEASE_S = 2


def open_url(url: str, lease_s: float, *, clock: Callable[[], float] = time.monotonic) -> SqsQueue:
    """`sqs://PREFIX?endpoint=…&region=…&create=yes|no`; the control Lane is looked up at once.

    Raises UsageError and QueueError.
    """
    where = parse_aws_url(url, choices={"create": ("yes", "no")}, attempts=3, timeout_s=10.0)
    whole_s = math.ceil(lease_s)
    if where.path or not _MIN_LEASE_S <= whole_s <= MAX_HOLD_S:
        raise UsageError(
            f"{url!r} with Leases of {lease_s:g} s: write sqs://PREFIX, and a Lease on SQS lasts "
            f"from {_MIN_LEASE_S} to {MAX_HOLD_S:g} s."
        )
    try:
        session = aws_session()
        config = client_config(where, session)
        calls = session.client("sqs", endpoint_url=where.endpoint, config=config)
        # A receive whose reply is lost hides messages for one Lease: it is not repeated often.
        patient = config.merge(
            Config(
                read_timeout=where.timeout_s + _MAX_POLL_S,
                retries={"mode": where.retries, "total_max_attempts": 2},
            )
        )
        polls = session.client("sqs", endpoint_url=where.endpoint, config=patient)
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            f"{url!r}: {error} Give region=… in the URL or AWS_DEFAULT_REGION."
        ) from error
    create = where.extra.get("create", "yes") == "yes"
    lanes = SqsLanes(calls, where.name, create=create, lease_s=whole_s)
    lanes.url(CONTROL_LANE)
    return SqsQueue(calls, polls, lanes, whole_s, clock=clock)


class SqsQueue:
    """Each Lane is a standard queue; the tenant is its message group, so SQS is fair to tenants."""

    def __init__(
        self,
        calls: SQSClient,
        polls: SQSClient,
        lanes: SqsLanes,
        lease_s: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`polls` waits for messages, so its timeout is longer than that of `calls`."""
        self._calls = calls
        self._polls = polls
        self._lanes = lanes
        self._lease_s = lease_s
        self._clock = clock
        self._leases = SqsLeases(lanes, lease_s, clock)
        self._knows_groups = True

    @property
    def lease_s(self) -> float:
        return float(self._lease_s)

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
        check_body(body)

        def ask(url: str) -> None:
            group = tenant_id if tenant_id and self._knows_groups else None
            request = new_message(url, body, num_rows=num_rows, num_tokens=num_tokens, group=group)
            try:
                self._calls.send_message(**request)
            except ClientError as error:
                if group is None or not _refuses_group(error):
                    raise
                self._knows_groups = False
                ask(url)

        with self._lanes.explained("sending to", lane):
            if makes_lane:
                self._on_lane(lane, ask)
            else:
                self._if_there(lane, ask)

    def receive(
        self,
        lanes: str | Sequence[str],
        max_messages: int,
        wait_s: float,
        *,
        max_rows: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Lease]:
        """SQS waits for whole seconds, so `wait_s` is rounded up.

        Only with a wait does it look at all of its servers; without, it may miss what is there.
        """
        names = as_lanes(lanes)
        room = Room(max_messages, max_rows, max_tokens)
        until = self._clock() + wait_s
        # Several Lanes are looked at in turn: all at once, then each for a second.
        longest_s = 0 if len(names) > 1 else min(_MAX_POLL_S, max(1, self._lease_s // 4))
        while True:
            leases: list[Lease] = []
            for lane in names:
                left_s = 0 if leases else max(0, math.ceil(until - self._clock()))
                leases += self._take(lane, room, min(left_s, longest_s))
            if leases or room.is_none or self._clock() >= until:
                return leases
            longest_s = max(1, longest_s)
            random.shuffle(names)  # so that each is waited on now and then

    def renew(self, leases: Iterable[Lease]) -> set[str]:
        """Each for a whole Lease, or for what is left of the 12 hours that SQS allows."""
        asked_at = self._clock()

        def hide(held: Held) -> float:
            return min(self._lease_s, held.hidden_left_s(asked_at))

        renewed = self._leases.change(leases, "renewing Leases on", self._hide(hide))
        self._leases.begin_anew(renewed, asked_at)
        return renewed

    def ack(self, *leases: Lease) -> bool:
        removed = self._leases.change(
            leases,
            "removing messages from",
            lambda url, batch: self._calls.delete_message_batch(
                QueueUrl=url,
                Entries=[{"Id": id, "ReceiptHandle": held.handle} for id, held in batch.items()],
            ).get("Failed", ()),
        )
        self._leases.forget(removed)
        return removed == {lease.id for lease in leases}

    def release(self, lease: Lease, delay_s: float = 0.0) -> bool:
        """A delay that leads beyond the 12 hours of SQS is shortened."""
        now = self._clock()

        def hide(held: Held) -> float:
            return min(delay_s, held.hidden_left_s(now))

        released = self._leases.change([lease], "giving a message back to", self._hide(hide))
        self._leases.forget(released)
        return bool(released)

    def dead_letter(self, lease: Lease, reason: str) -> bool:
        """Sent to the other queue first, so a death in between doubles it and loses nothing."""
        if not self._leases.live([lease]):
            return False
        with self._lanes.explained("putting a dead letter beside", lease.lane):
            self._on_lane(
                lease.lane,
                lambda url: self._calls.send_message(**new_dead_letter(url, lease.body, reason)),
                queue_url=self._lanes.dead_url,
            )
        return self.ack(lease)

    def stats(self, lane: str) -> LaneStats:
        """SQS counts roughly and a minute late, and what is released with a delay as leased."""
        url, dead_url = self._lanes.existing_urls(lane)
        with self._lanes.explained("counting", lane):
            try:
                visible, leased = count_messages(self._calls, url)
                dead = sum(count_messages(self._calls, dead_url))
                return LaneStats(visible, leased, dead, None)
            except ClientError as error:
                if not is_gone(error):
                    raise
        self._lanes.forget(lane)
        return LaneStats(0, 0, 0, None)

    def remove_lane(self, lane: str) -> None:
        """Needs the permission DeleteQueue. SQS makes none of the same name for a minute."""
        with self._lanes.explained("removing", lane):
            for url in filter(None, self._lanes.existing_urls(lane)):
                try:
                    self._calls.delete_queue(QueueUrl=url)
                except ClientError as error:
                    if not is_gone(error):
                        raise
        self._lanes.forget(lane)

    def close(self) -> None:
        self._calls.close()
        self._polls.close()

    # Requests

    def _take(self, lane: str, room: Room, wait_s: int) -> list[Lease]:
        """What is ready on one Lane and fits. Few messages more than fit are ever asked for."""
        leases: list[Lease] = []
        sizes: tuple[int, int] | None = None
        while (count := _num_to_ask(room, sizes)) > 0:
            asked_at = self._clock()
            url, messages = self._ask(lane, count, wait_s)
            for message in messages:
                sizes = sizes_of(message)
                lease = self._leases.begin(
                    lane, url, message["ReceiptHandle"], message["Body"].encode(), asked_at
                )
                if room.take(*sizes):
                    leases.append(lease)
                else:
                    with suppress(QueueError):  # then it comes back when its Lease ends
                        self.release(lease)
            if len(messages) < count:
                break
            wait_s = 0
        return leases

    def _ask(self, lane: str, count: int, wait_s: int) -> tuple[str, list[MessageTypeDef]]:
        def ask(url: str) -> tuple[str, list[MessageTypeDef]]:
            reply = self._polls.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=count,
                VisibilityTimeout=self._lease_s,
                WaitTimeSeconds=wait_s,
                MessageAttributeNames=SIZES,
            )
            return url, reply.get("Messages", [])

        with self._lanes.explained("receiving from", lane):
            return self._on_lane(lane, ask)

    def _hide(self, seconds: Callable[[Held], float]) -> Ask:
        return lambda url, batch: self._calls.change_message_visibility_batch(
            QueueUrl=url,
            Entries=[
                {
                    "Id": id,
                    "ReceiptHandle": held.handle,
                    "VisibilityTimeout": math.ceil(seconds(held)),
                }
                for id, held in batch.items()
            ],
        ).get("Failed", ())

    def _if_there(self, lane: str, ask: Callable[[str], object]) -> None:
        """Ask the queue of a Lane; without one, do nothing."""
        url = self._lanes.existing_url(lane)
        if url is None:
            return
        try:
            ask(url)
        except ClientError as error:
            if not is_gone(error):
                raise
            self._lanes.forget(lane)

    def _on_lane(
        self, lane: str, ask: Callable[[str], T], *, queue_url: Callable[[str], str] | None = None
    ) -> T:
        """Ask the queue of a Lane; if somebody removed it, make it and ask the new one."""
        queue_url = queue_url or self._lanes.url
        try:
            return ask(queue_url(lane))
        except ClientError as error:
            if not is_gone(error):
                raise
            self._lanes.forget(lane)
            return ask(queue_url(lane))


def _refuses_group(error: ClientError) -> bool:
    """Whether the server is older than fair queues, and knows groups on FIFO queues only."""
    return "queue type" in str(error)


def _num_to_ask(room: Room, sizes: tuple[int, int] | None) -> int:
    """As many as fit if they are all like the last one, whose rows and tokens are given.

    Every receive counts towards the redrive of a message, so none is received only to be given
    back, but for the odd one that is larger than the last.
    """
    if room.is_none:
        return 0
    limits = [MAX_BATCH, room.num_messages]
    for left, size in zip((room.num_rows, room.num_tokens), sizes or (0, 0), strict=True):
        if left is not None:
            limits.append(1 if sizes is None else left // max(1, size))
    return min(limits)
