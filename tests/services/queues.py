"""The Queues that the contract is tested on, each with a hand on its clock."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from aws_server import running_aws
from redis_server import age, server_names, shared_server

from gristmill.queues.base import Lease, Queue
from gristmill.queues.memory import MemoryQueue
from gristmill.queues.open import open_queue


@dataclass(frozen=True)
class Backend:
    """An empty Queue, and what can be expected of it."""

    queue: Queue
    #: Let so many seconds pass for Leases and delays (at once where that can be had).
    advance: Callable[[float], None]
    #: Another client of the same messages; None where there is only one process.
    connect: Callable[[], Queue] | None = None
    #: A lost Lease is refused. Without it a server may say yes to an old one, and do no harm.
    checks_owner: bool = True
    #: A message id that waits is not sent again.
    knows_ids: bool = True
    #: Messages come in the order in which they were sent, and stats are exact.
    is_exact: bool = True
    #: A message that is leased is given to nobody else. SQS promises "at least once" and no more.
    delivers_once: bool = True

    @property
    def lease_s(self) -> float:
        return self.queue.lease_s


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@contextmanager
def memory() -> Iterator[Backend]:
    clock = Clock()
    yield Backend(MemoryQueue(60.0, clock), clock.advance)


@contextmanager
def redis(name: str) -> Iterator[Backend]:
    server = shared_server(name)
    prefix = f"test-{uuid4().hex}"
    url = f"{server.url}?prefix={prefix}"
    queue = open_queue(url, 60.0)
    with server.client as client:
        yield Backend(
            queue,
            advance=lambda seconds: age(client, prefix, seconds),
            connect=lambda: open_queue(url, 60.0),
        )
        queue.close()
        client.delete(*client.scan_iter(match=f"{{{prefix}}}:*"), "no such key")


@contextmanager
def sqs(lease_s: float = 60.0) -> Iterator[Backend]:
    from gristmill.queues.sqs import SqsQueue, open_url

    with running_aws() as aws:
        url = f"sqs://t-{secrets.token_hex(6)}?endpoint={aws.url}"
        clients: list[SqsQueue] = []
        ahead = Clock(0.0)

        def connect() -> Queue:
            clients.append(open_url(url, lease_s, clock=lambda: time.monotonic() + ahead()))
            return clients[-1]

        def advance(seconds: float) -> None:
            aws.advance(seconds)
            ahead.advance(seconds)

        queue = connect()
        yield Backend(queue, advance, connect, knows_ids=False, is_exact=False, delivers_once=False)
        for client in clients:
            client.close()


#: One entry for each Queue; it skips the test where its server cannot be had.
BACKENDS: dict[str, Callable[[], AbstractContextManager[Backend]]] = {
    "memory": memory,
    "sqs": sqs,
    **{name: partial(redis, name) for name in server_names()},
}


def take_one(queue: Queue) -> Lease:
    (lease,) = queue.receive("bulk", 1, 0)
    return lease


def take_all(queue: Queue, lanes: str | list[str] = "bulk") -> list[Lease]:
    """Everything that can be had now; a server may give it in several answers."""
    leases: list[Lease] = []
    while more := queue.receive(lanes, 10, 0):
        leases += more
    return leases


def bodies(leases: list[Lease]) -> list[bytes]:
    return [lease.body for lease in leases]
