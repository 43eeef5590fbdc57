"""What somebody meddles with is mended, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from queues import bodies, take_one
from redis_server import age, leftovers, shared_server

from gristmill.queues.open import open_queue
from gristmill.queues.redis import GROUP, RedisQueue

LEASE_S = 60.0
STREAM = "{gristmill}:bulk:messages"


def test_what_a_deleted_consumer_held_is_found_again(
    queue: RedisQueue, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"a", b"b"):
        queue.send("bulk", body, message_id=body.decode())
    queue.receive("bulk", 9, 0)
    (consumer,) = client.xinfo_consumers(STREAM, GROUP)

    assert client.xgroup_delconsumer(STREAM, GROUP, consumer["name"]) == 2

    assert bodies(queue.receive("bulk", 9, 0)) == [b"a", b"b"]
    assert "messages found again lane=bulk num_messages=2" in caplog.text


def test_a_sweep_that_rings_finds_a_ghost_at_once(name: str, client: Any) -> None:
    queue = open_queue(shared_server(name).url, LEASE_S)
    queue.send("bulk", b"a", message_id="a")
    lease = take_one(queue)
    client.xack(STREAM, GROUP, lease.id.split("/")[1])
    assert queue.receive("bulk", 1, 0) == [], "ghosts are looked for now and then only"

    queue.send("bulk", b"a", message_id="a")

    assert queue.stats("bulk").visible == 1
    assert bodies(queue.receive("bulk", 9, 0)) == [b"a"]
    queue.close()


def test_a_message_read_by_hand_is_given_out_again(queue: RedisQueue, client: Any) -> None:
    assert queue.receive("bulk", 1, 0) == []
    queue.send("bulk", b"a")
    client.xreadgroup(GROUP, "somebody", {STREAM: ">"})
    age(client, "gristmill", LEASE_S)

    assert bodies(queue.receive("bulk", 9, 0)) == [b"a"]


def test_an_entry_that_is_deleted_under_its_lease_is_skipped(
    queue: RedisQueue, client: Any
) -> None:
    """Fault 20: on Redis 6.2 it stays in the pending list for ever, and is claimed as nothing."""
    for body in (b"a", b"b"):
        queue.send("bulk", body, message_id=body.decode())
    lease = take_one(queue)
    client.xdel(STREAM, lease.id.split("/")[1])
    age(client, "gristmill", LEASE_S + 1)

    (other,) = queue.receive("bulk", 9, 0)

    assert other.body == b"b"
    assert client.xpending(STREAM, GROUP)["pending"] == 1
    queue.send("bulk", b"a", message_id="a")
    assert queue.ack(*queue.receive("bulk", 9, 0), other)
    assert leftovers(client) == {"messages": 0, "ids": 0, "pending": 0}


def test_nothing_is_left_of_many_messages_and_many_clients(name: str, client: Any) -> None:
    """Promise 16: dead clients, late ones and lost Leases included."""
    url = shared_server(name).url
    sender = open_queue(url, LEASE_S)
    for i in range(300):
        sender.send("bulk", f"m{i}".encode(), message_id=f"m{i}")
    seen: set[bytes] = set()
    for n in range(1000):
        worker = open_queue(url, LEASE_S)
        leases = worker.receive("bulk", 25, 0)
        if not leases:
            break
        if n % 3 == 0:
            age(client, "gristmill", LEASE_S + 1)  # and this one is never heard of again
            assert not worker.ack(*leases)
        else:
            seen.update(lease.body for lease in leases)
            assert worker.ack(*leases)
        worker.close()

    assert len(seen) == 300
    assert leftovers(client) == {"messages": 0, "ids": 0, "pending": 0}
    assert set(client.scan_iter()) <= {STREAM.encode()}
    sender.close()


def test_consumers_that_are_silent_and_hold_nothing_are_forgotten(
    queue: RedisQueue, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 19: in one step on the server, so that none loses what it has just taken."""
    for body in (b"a", b"b"):
        queue.send("bulk", body)
    held = take_one(queue)
    client.xgroup_createconsumer(STREAM, GROUP, "silent")
    monkeypatch.setattr("gristmill.queues.redis._SILENT_CONSUMER_MS", -1)

    queue.repair("bulk")

    (left,) = client.xinfo_consumers(STREAM, GROUP)
    assert left["pending"] == 1
    assert queue.ack(held)
    queue.repair("bulk")
    assert client.xinfo_consumers(STREAM, GROUP) == []
    assert bodies(queue.receive("bulk", 9, 0)) == [b"b"], "who comes back is known again"


def test_dead_letters_tell_why(queue: RedisQueue, client: Any) -> None:
    queue.send("bulk", b"not a pointer", message_id="x")

    assert queue.dead_letter(take_one(queue), "no JSON: " + "x" * 5000)

    ((_, fields),) = client.xrange("{gristmill}:bulk:dead")
    assert (fields[b"b"], fields[b"i"]) == (b"not a pointer", b"x")
    assert fields[b"why"].startswith(b"no JSON: xxx")
    assert len(fields[b"why"]) == 1000
    assert leftovers(client) == {"messages": 0, "ids": 0, "pending": 0}


def test_the_oldest_message_that_waits_tells_its_age(queue: RedisQueue, client: Any) -> None:
    for name, entry in ((b"first", "1000-0"), (b"second", "200000-9"), (b"third", "200000-10")):
        client.xadd(STREAM, {"b": name}, id=entry)  # sent in the first minutes of 1970
    queue.send("bulk", b"now")

    def from_1970() -> float | None:
        age_s = queue.stats("bulk").oldest_age_s
        return None if age_s is None else age_s - now_s

    server_time: Any = client.time()
    now_s = server_time[0]
    all_wait = from_1970()
    first, second, third = queue.receive("bulk", 3, 0)
    only_now_waits = queue.stats("bulk").oldest_age_s
    queue.release(second)
    queue.release(third)
    second_waits = from_1970()
    age(client, "gristmill", LEASE_S + 1)
    first_ended = from_1970()

    assert all_wait == pytest.approx(-1, abs=5)
    assert only_now_waits == pytest.approx(0, abs=5)
    assert second_waits == pytest.approx(-200, abs=5)
    assert first_ended == pytest.approx(-1, abs=5)
    assert queue.renew([first]) == set()


def test_stats_see_leases_of_any_length(name: str, queue: RedisQueue, client: Any) -> None:
    short, long = (open_queue(shared_server(name).url, lease_s) for lease_s in (1.0, 3600.0))
    for i in range(3):
        queue.send("bulk", f"m{i}".encode())
    held = [q.receive("bulk", 1, 0)[0] for q in (short, queue, long)]

    def leased_after(seconds: float) -> int:
        age(client, "gristmill", seconds)
        return queue.stats("bulk").leased

    assert [leased_after(seconds) for seconds in (0, 2, 60, 3600)] == [3, 2, 1, 0]
    assert [q.renew([lease]) for q, lease in zip((short, queue, long), held, strict=True)] == [
        set()
    ] * 3
    short.close()
    long.close()


def test_a_short_lease_never_takes_what_a_longer_one_holds(
    name: str, queue: RedisQueue, client: Any
) -> None:
    """Each Lease lasts as long as its own holder said."""
    short = open_queue(shared_server(name).url, 1.0)
    queue.send("bulk", b"a")
    lease = take_one(queue)
    age(client, "gristmill", 30)

    assert short.receive("bulk", 1, 0) == []
    assert queue.ack(lease)
    short.close()


def test_all_keys_begin_with_the_prefix_and_lie_in_one_slot(name: str, client: Any) -> None:
    queue = open_queue(f"{shared_server(name).url}?prefix=mine", LEASE_S)
    for lane in ("bulk", "control"):
        queue.send(lane, b"a", message_id="a")
        queue.dead_letter(queue.receive(lane, 1, 0)[0], "why not")
        queue.send(lane, b"b", message_id="b")

    keys = sorted(key.decode() for key in client.scan_iter())

    kinds = ("dead", "ids", "messages")
    assert keys == [f"{{mine}}:{lane}:{kind}" for lane in ("bulk", "control") for kind in kinds]
    queue.close()
