"""How many messages a second a Queue carries, and how soon a waiting worker has one.

    python tests/bench/queues.py                      memory, and each Redis and Valkey found here
    python tests/bench/queues.py --queue redis://127.0.0.1:6379/0
    python tests/bench/queues.py --queue sqs://bench?endpoint=http://127.0.0.1:5000

One process is both sides, and pays for both; the server runs beside it. Each message is a pointer
of one row, the worst case: a Shard holds up to 256. Use a queue that nobody else uses.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gristmill.queues.base import Lease, Queue
from gristmill.queues.open import open_queue

LEASE_S = 60.0
#: As long as the pointer of a Shard.
BODY = b"x" * 200
LANE = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--queue", help="a URL that open_queue takes")
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--wakes", type=int, default=200)
    args = parser.parse_args()
    queues = [(args.queue, args.queue)] if args.queue else found_queues()
    print(f"{args.messages} messages of 1 row and {len(BODY)} bytes; messages a second")
    for name, url in queues:
        measure(name, open_queue(url, LEASE_S), args.messages, args.wakes)


def found_queues() -> Iterator[tuple[str, str]]:
    """The Queue in memory, and servers that keep each write in their log (fsync each second)."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "services"))
    from redis_server import RedisProcess, find_binary, server_names

    yield "memory", "memory://"
    for name in server_names():
        if find_binary(name):
            server = RedisProcess(name, ("--save", "", "--appendonly", "yes")).start()
            try:
                yield name, server.url
            finally:
                server.remove()


def measure(name: str, queue: Queue, num_messages: int, num_wakes: int) -> None:
    empty(queue)
    print(f"\n{name}")
    show("send", num_messages, lambda: send(queue, num_messages))
    show("receive 1, ack 1", num_messages, lambda: take(queue, num_messages, at_once=1))
    send(queue, num_messages)
    show("receive 100, ack them", num_messages, lambda: take(queue, num_messages, at_once=100))
    send(queue, 500)
    leases = take_some(queue, 500)
    show("renew 500 together", 10 * 500, lambda: [queue.renew(leases) for _ in range(10)])
    queue.ack(*leases)
    waits = [wake(queue) * 1000 for _ in range(num_wakes)]
    p95 = statistics.quantiles(waits, n=20)[-1]
    print(f"  {'waiting worker has it':24} median {statistics.median(waits):.2f} ms, p95 {p95:.2f}")
    queue.close()


def show(what: str, num_messages: int, do: Callable[[], object]) -> None:
    began = time.perf_counter()
    do()
    print(f"  {what:24} {num_messages / (time.perf_counter() - began):10,.0f}/s")


def send(queue: Queue, num_messages: int) -> None:
    for i in range(num_messages):
        queue.send(LANE, BODY, message_id=f"batch/run/{i}", num_tokens=10, tenant_id="t")


def take(queue: Queue, num_messages: int, *, at_once: int) -> None:
    """Like a worker that has room for so many rows."""
    while num_messages > 0:
        leases = queue.receive(LANE, at_once, 1.0, max_rows=at_once, max_tokens=10_000)
        queue.ack(*leases)
        num_messages -= len(leases)


def take_some(queue: Queue, num_messages: int) -> list[Lease]:
    leases: list[Lease] = []
    while len(leases) < num_messages:
        leases += queue.receive(LANE, num_messages - len(leases), 1.0)
    return leases


def wake(queue: Queue) -> float:
    """Seconds from a send until a receiver that waits has the message."""
    received_at = 0.0

    def receive() -> None:
        nonlocal received_at
        (lease,) = queue.receive(LANE, 1, 30.0)
        received_at = time.perf_counter()
        queue.ack(lease)

    waiter = threading.Thread(target=receive)
    waiter.start()
    time.sleep(0.01)  # so that it waits indeed
    sent_at = time.perf_counter()
    queue.send(LANE, BODY)
    waiter.join()
    return received_at - sent_at


def empty(queue: Queue) -> None:
    while leases := queue.receive(LANE, 100, 0):
        queue.ack(*leases)


if __name__ == "__main__":
    main()
