"""What every Queue promises about Leases, whatever is behind it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from queues import Backend, bodies, take_all, take_one


def test_a_leased_message_is_hidden_until_its_lease_ends(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    old = take_one(backend.queue)

    backend.advance(backend.lease_s * 0.5)
    hidden = backend.queue.receive("bulk", 1, 0)
    backend.advance(backend.lease_s * 0.6)
    new = take_one(backend.queue)

    assert hidden == []
    assert new.body == b"a"
    assert new.id != old.id


def test_B34_a_renewed_lease_lasts_from_the_renewal(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    lease = take_one(backend.queue)

    for _ in range(3):
        backend.advance(backend.lease_s * 0.6)
        assert backend.queue.renew([lease]) == {lease.id}

    assert backend.queue.receive("bulk", 1, 0) == []
    assert backend.queue.ack(lease)


def test_many_leases_are_renewed_and_acknowledged_at_once(backend: Backend) -> None:
    for i in range(25):
        backend.queue.send("bulk", f"m{i}".encode())
    leases = take_all(backend.queue)

    assert len(leases) == 25
    assert backend.queue.renew(leases) == {lease.id for lease in leases}
    assert backend.queue.ack(*leases)
    assert backend.queue.renew([]) == set()
    assert backend.queue.ack()
    assert take_all(backend.queue) == []


def test_a_lost_lease_can_do_nothing_to_its_successor(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    old = take_one(backend.queue)
    backend.advance(backend.lease_s * 1.1)
    new = take_one(backend.queue)

    if backend.checks_owner:
        assert backend.queue.renew([old, new]) == {new.id}
        assert not backend.queue.ack(old)
        assert not backend.queue.release(old)
        assert not backend.queue.dead_letter(old, "it was mine")
        assert backend.queue.receive("bulk", 1, 0) == []
    assert backend.queue.ack(new)


def test_a_lease_that_ended_is_lost_even_when_nobody_took_the_message(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    lease = take_one(backend.queue)
    backend.advance(backend.lease_s * 1.1)

    if backend.checks_owner:
        assert backend.queue.renew([lease]) == set()
        assert not backend.queue.ack(lease)
    assert take_one(backend.queue).body == b"a"


def test_a_released_message_is_seen_at_once(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    lease = take_one(backend.queue)

    assert backend.queue.release(lease)

    again = take_one(backend.queue)
    assert (again.body, again.id != lease.id) == (b"a", True)
    if backend.checks_owner:
        assert not backend.queue.ack(lease)
    assert backend.queue.ack(again)


def test_a_released_message_is_seen_after_its_delay_and_not_before(backend: Backend) -> None:
    delay_s = backend.lease_s * 2
    backend.queue.send("bulk", b"a")
    assert backend.queue.release(take_one(backend.queue), delay_s=delay_s)

    at_once = backend.queue.receive("bulk", 1, 0)
    backend.advance(backend.lease_s * 1.5)
    after_a_lease = backend.queue.receive("bulk", 1, 0)
    backend.advance(backend.lease_s * 0.6)

    assert (at_once, after_a_lease) == ([], [])
    assert take_one(backend.queue).body == b"a"


def test_an_acknowledged_message_never_comes_back(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    lease = take_one(backend.queue)

    assert backend.queue.ack(lease)
    if backend.checks_owner:
        assert not backend.queue.ack(lease)
    backend.advance(backend.lease_s * 1.1)
    assert backend.queue.receive("bulk", 1, 0) == []


def test_a_dead_letter_never_comes_back_and_is_counted(backend: Backend) -> None:
    backend.queue.send("bulk", b"not a pointer")
    backend.queue.send("bulk", b"a")
    leases = {lease.body: lease for lease in take_all(backend.queue)}

    assert backend.queue.dead_letter(leases[b"not a pointer"], "it is no pointer")
    assert backend.queue.ack(leases[b"a"])

    backend.advance(backend.lease_s * 1.1)
    assert backend.queue.receive("bulk", 1, 0) == []
    if backend.is_exact:
        assert backend.queue.stats("bulk").dead == 1


def test_two_clients_share_the_messages_and_not_the_leases(backend: Backend) -> None:
    if backend.connect is None:
        pytest.skip("lives in one process")
    other = backend.connect()
    for i in range(4):
        backend.queue.send("bulk", f"m{i}".encode())

    mine = backend.queue.receive("bulk", 2, 0)
    theirs = take_all(other)
    mine += take_all(backend.queue)

    assert sorted(bodies(mine + theirs)) == [b"m0", b"m1", b"m2", b"m3"]
    if backend.checks_owner:
        assert other.renew(mine) == set()
        assert not other.ack(mine[0])
        assert not other.release(mine[0])
    assert backend.queue.renew(mine) == {lease.id for lease in mine}
    other.close()
    assert backend.queue.ack(*mine)


def test_what_a_dead_client_held_goes_to_another(backend: Backend) -> None:
    """B35: its work comes back when the Lease ends, not an hour later."""
    if backend.connect is None:
        pytest.skip("lives in one process")
    dead = backend.connect()
    backend.queue.send("bulk", b"a")
    (lost,) = dead.receive("bulk", 1, 0)
    backend.advance(backend.lease_s * 1.1)

    lease = take_one(backend.queue)

    assert lease.body == b"a"
    if backend.checks_owner:
        assert dead.renew([lost]) == set()
        assert not dead.ack(lost)
    dead.close()
    assert backend.queue.ack(lease)


def test_threads_share_a_queue_and_each_message_is_acknowledged(backend: Backend) -> None:
    for i in range(40):
        backend.queue.send("bulk", f"m{i}".encode())
    acknowledged: list[bytes] = []

    def work() -> None:
        while leases := backend.queue.receive("bulk", 3, 0.1):
            kept = backend.queue.renew(leases)
            held = [lease for lease in leases if lease.id in kept]
            acked = backend.queue.ack(*held)
            if backend.delivers_once:
                assert acked and held == leases
            acknowledged.extend(lease.body for lease in held)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for _ in range(4)]:
            done.result()

    sent = sorted(f"m{i}".encode() for i in range(40))
    if backend.delivers_once:
        assert sorted(acknowledged) == sent
    else:  # acceptance counts a row once, however often it is answered
        assert sorted(set(acknowledged)) == sent
