"""A server may forget the last of what it said yes to; sending again mends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from queues import bodies, take_all
from redis_server import RedisProcess

from gristmill.errors import QueueError
from gristmill.queues.base import Queue
from gristmill.queues.open import open_queue
from gristmill.queues.redis import GROUP

LEASE_S = 60.0
ALL = {f"m{i}".encode() for i in range(20)}


def send_all(queue: Queue) -> None:
    """What a sweep does: ring for all that the Ledger misses."""
    for body in sorted(ALL):
        queue.send("bulk", body, message_id=body.decode())


def is_in_step(replica: redis.Redis, *, num_leased: int) -> bool:
    try:
        pending: Any = replica.xpending("{gristmill}:bulk:messages", GROUP)
    except redis.RedisError:
        return False  # still loading, or still empty
    return bool(pending["pending"] == num_leased)


@pytest.fixture
def server(name: str) -> Iterator[RedisProcess]:
    options = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
    server = RedisProcess(name, (*options, "--auto-aof-rewrite-percentage", "0"))
    yield server
    server.remove()


def test_a_log_that_ends_in_the_middle_of_a_write_costs_no_message(server: RedisProcess) -> None:
    """Fault 14."""
    queue = open_queue(server.start().url, LEASE_S)
    send_all(queue)
    queue.ack(*queue.receive("bulk", 5, 0))
    queue.receive("bulk", 5, 0)
    server.kill()
    log = max(Path(server.folder).rglob("*.aof"), key=lambda path: path.stat().st_size)
    whole = log.read_bytes()

    for share in (0.97, 0.75, 0.5, 0.25, 0.02):
        log.write_bytes(whole[: int(len(whole) * share) - 3])
        queue = open_queue(server.start().url, LEASE_S)
        found = take_all(queue)
        send_all(queue)
        found += take_all(queue)

        # What is held by the client of before may be given out twice, or be done already.
        assert set(bodies(found)) == ALL
        assert queue.ack(*found)
        assert queue.stats("bulk").visible == 0
        queue.close()
        server.kill()


def test_a_replica_is_no_queue_until_it_is_the_primary(name: str) -> None:
    """Fault 16: what the replica had not heard of is sent again, what it had is not doubled."""
    primary = RedisProcess(name).start()
    replica = RedisProcess(name).start()
    with primary.client as at_primary, replica.client as at_replica:
        at_primary.config_set("repl-diskless-sync-delay", 0)
        at_replica.replicaof("127.0.0.1", primary.port)
        queue = open_queue(primary.url, LEASE_S)
        for body in sorted(ALL)[:12]:
            queue.send("bulk", body, message_id=body.decode())
        held = queue.receive("bulk", 2, 0)
        while not is_in_step(at_replica, num_leased=len(held)):
            pass
        new = open_queue(replica.url, LEASE_S)

        with pytest.raises(QueueError, match="address of the primary") as caught:
            new.send("bulk", b"a")
        at_replica.replicaof("NO", "ONE")
        send_all(queue)

    assert caught.value.retryable
    assert new.stats("bulk").leased == len(held)
    send_all(new)
    assert set(bodies(take_all(new))) == ALL
    for end in (queue, new):
        end.close()
    primary.remove()
    replica.remove()
