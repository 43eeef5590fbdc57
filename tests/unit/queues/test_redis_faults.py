"""A Redis that is restarted, emptied, full or cut off costs time, never work."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from queues import bodies, take_one
from redis_server import RedisProcess, age, leftovers, shared_server
from tcp_proxy import tcp_proxy

from gristmill.errors import QueueError
from gristmill.queues.base import Lease
from gristmill.queues.open import open_queue
from gristmill.queues.redis import GROUP, RedisQueue

LEASE_S = 60.0
STREAM = "{gristmill}:bulk:messages"
NOTHING_KEPT = ("--save", "", "--appendonly", "no")
ALL_KEPT = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")


def test_B36_a_restart_with_its_data_costs_nothing(name: str) -> None:
    """Fault 13: messages, Leases and delays are there after kill -9."""
    server = RedisProcess(name, ALL_KEPT).start()
    queue = open_queue(server.url, LEASE_S)
    for body in (b"held", b"delayed", b"waits"):
        queue.send("bulk", body, message_id=body.decode())
    held, delayed = queue.receive("bulk", 2, 0)
    queue.release(delayed, 30.0)

    server.kill()
    with pytest.raises(QueueError) as caught:
        queue.renew([held])
    server.start()

    assert caught.value.retryable
    assert queue.renew([held]) == {held.id}
    queue.send("bulk", b"waits", message_id="waits")
    assert bodies(queue.receive("bulk", 9, 0)) == [b"waits"]
    assert queue.ack(held)
    with server.client as client:
        age(client, "gristmill", 31)
    assert bodies(queue.receive("bulk", 9, 0)) == [b"delayed"]
    queue.close()
    server.remove()


def test_B36_a_restart_without_its_data_needs_no_other_restart(name: str) -> None:
    server = RedisProcess(name, NOTHING_KEPT).start()
    queue = open_queue(server.url, LEASE_S)
    queue.send("bulk", b"a", message_id="a")
    lost = take_one(queue)

    server.kill()
    server.start()

    assert queue.renew([lost]) == set()
    assert not queue.ack(lost)
    assert not queue.release(lost)
    assert not queue.dead_letter(lost, "it was mine")
    queue.send("bulk", b"a", message_id="a")
    assert take_one(queue).body == b"a"
    queue.close()
    server.remove()


def test_a_waiting_receiver_gets_an_error_of_ours_and_goes_on_after_the_restart(name: str) -> None:
    server = RedisProcess(name, NOTHING_KEPT).start()
    queue = open_queue(server.url, LEASE_S)
    errors: list[Exception] = []
    received: list[Lease] = []

    def work() -> None:
        while not received:
            try:
                received.extend(queue.receive("bulk", 1, wait_s=5))
            except Exception as error:
                errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    server.kill()
    while not errors:
        pass
    server.start()
    queue.send("bulk", b"a")
    worker.join(timeout=60)

    assert bodies(received) == [b"a"]
    assert {type(error) for error in errors} == {QueueError}
    queue.close()
    server.remove()


def test_a_server_that_still_loads_is_an_error_that_passes() -> None:
    """Fault 17: LOADING, from a real server."""
    server = RedisProcess("redis8", NOTHING_KEPT).start()
    queue = open_queue(server.url, LEASE_S)
    queue.send("bulk", b"a")
    with server.client as client:
        for n in range(0, 1000, 100):
            client.mset({f"filler-{i}": i for i in range(n, n + 100)})
        client.save()
    server.kill()
    slow = ("--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024")
    server.options = (*NOTHING_KEPT, *slow)
    server.start(wait=False)

    said = set()
    while True:
        try:
            (lease,) = queue.receive("bulk", 1, 0)
            break
        except QueueError as error:
            assert error.retryable
            said.add("still reading its files" in str(error))

    assert lease.body == b"a"
    assert True in said
    queue.close()
    server.remove()


def test_a_queue_that_is_wiped_in_the_middle_goes_on(queue: RedisQueue, client: Any) -> None:
    """Fault 15."""
    queue.send("bulk", b"a", message_id="a")
    lost = take_one(queue)
    assert queue.receive(["control", "bulk"], 1, 0) == []

    client.flushall()

    assert queue.renew([lost]) == set()
    assert queue.stats("bulk").visible == 0
    assert not queue.ack(lost)
    queue.send("bulk", b"a", message_id="a")
    assert take_one(queue).body == b"a"
    assert queue.receive(["control", "bulk"], 1, 0) == []


def test_a_group_that_is_destroyed_gives_everything_out_again(
    queue: RedisQueue, client: Any
) -> None:
    for body in (b"held", b"waits"):
        queue.send("bulk", body)
    held = take_one(queue)

    client.xgroup_destroy(STREAM, GROUP)

    assert queue.renew([held]) == set()
    assert queue.stats("bulk").visible == 2
    assert bodies(queue.receive("bulk", 9, 0)) == [b"held", b"waits"]


def test_B39_a_full_server_refuses_new_messages_and_is_drained(
    queue: RedisQueue, client: Any
) -> None:
    """Fault 18: nothing is lost, work goes on, and room comes back."""
    queue.send("bulk", b"first", message_id="first")
    queue.send("bulk", b"second", message_id="second")
    held = take_one(queue)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(QueueError, match="is full") as caught:
            queue.send("bulk", b"third", message_id="third")

        assert caught.value.retryable
        assert queue.renew([held]) == {held.id}
        assert queue.release(held)
        assert queue.ack(*queue.receive("bulk", 9, 0))
        assert leftovers(client) == {"messages": 0, "ids": 0, "pending": 0}
    finally:
        client.config_set("maxmemory", 0)
    queue.send("bulk", b"third", message_id="third")
    assert take_one(queue).body == b"third"


def test_a_lost_reply_neither_doubles_nor_loses_a_message(name: str, client: Any) -> None:
    """Faults 9, 10 and 11: the connection is cut while the reply travels."""
    with tcp_proxy(shared_server(name).port) as proxy:
        queue = open_queue(f"redis://127.0.0.1:{proxy.port}", LEASE_S)
        assert queue.receive("bulk", 1, 0) == []

        proxy.cut_at.append(b":1\r\n")
        queue.send("bulk", b"body-a", message_id="a")
        assert client.xlen(STREAM) == 1

        proxy.cut_at.append(b"body-a")
        assert queue.receive("bulk", 1, 0) == [], "it is out, and nobody knows"
        age(client, "gristmill", LEASE_S + 1)
        lease = take_one(queue)

        proxy.cut_at.append(b":1\r\n")
        assert not queue.ack(lease), "done the first time"
        assert proxy.num_cuts == 3
        assert leftovers(client) == {"messages": 0, "ids": 0, "pending": 0}
        queue.close()
