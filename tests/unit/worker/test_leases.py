"""A Lease is kept while its owner works, and given up before anybody else can have it."""

from __future__ import annotations

from fake_engine import Clock

from gristmill.queues.base import Lease
from gristmill.queues.memory import MemoryQueue
from gristmill_worker.leases import LeaseKeeper

LEASE_S = 60.0


class Setup:
    def __init__(self) -> None:
        self.clock = Clock()
        self.queue = MemoryQueue(LEASE_S, self.clock)
        self.keeper = LeaseKeeper(self.queue, watchdog_s=120.0, clock=self.clock)
        self.queue.send("bulk", b"x")
        self.lease = self.receive()
        self.keeper.add(self.lease, since=self.clock.now)

    def receive(self) -> Lease:
        (lease,) = self.queue.receive("bulk", 1, 0)
        return lease


def test_a_lease_that_is_renewed_stays_safe_b34() -> None:
    setup = Setup()

    for _ in range(40):
        setup.clock.advance(LEASE_S / 4)
        setup.keeper.beat()
        setup.keeper.renew()

    assert setup.keeper.is_safe(setup.lease)
    assert setup.queue.receive("bulk", 1, 0) == []


def test_a_worker_fences_itself_before_the_queue_gives_its_work_away() -> None:
    setup = Setup()

    setup.clock.advance(LEASE_S * 0.8)
    before = setup.keeper.is_safe(setup.lease)
    setup.clock.advance(LEASE_S * 0.1)
    after = setup.keeper.is_safe(setup.lease)

    assert (before, after) == (True, False)
    assert setup.queue.receive("bulk", 1, 0) == []
    setup.keeper.renew()
    assert not setup.keeper.is_safe(setup.lease), "once lost, for good"


def test_a_lease_that_another_has_is_lost_at_the_next_renewal() -> None:
    setup = Setup()
    setup.queue.release(setup.lease)
    other = setup.receive()

    setup.keeper.renew()

    assert not setup.keeper.is_safe(setup.lease)
    assert setup.queue.ack(other)


def test_a_hanging_engine_loses_its_leases() -> None:
    setup = Setup()

    for _ in range(12):
        setup.clock.advance(LEASE_S / 4)
        setup.keeper.renew()

    assert not setup.keeper.is_safe(setup.lease)
    assert setup.receive().body == b"x"


def test_a_call_that_hangs_beside_the_engine_loses_its_leases_too() -> None:
    setup = Setup()
    call_began = setup.clock.now
    setup.keeper.helpers_busy_s = lambda: setup.clock.now - call_began

    for _ in range(12):
        setup.clock.advance(LEASE_S / 4)
        setup.keeper.beat()
        setup.keeper.renew()

    assert not setup.keeper.is_safe(setup.lease)
    assert setup.receive().body == b"x"


def test_slow_steps_are_no_hanging_engine() -> None:
    setup = Setup()
    for _ in range(5):
        for _ in range(7):
            setup.clock.advance(LEASE_S / 4)
            setup.keeper.renew()
        setup.keeper.beat()

    for _ in range(40):
        setup.clock.advance(LEASE_S / 4)
        setup.keeper.renew()

    assert setup.keeper.is_safe(setup.lease)


def test_the_thread_survives_a_queue_that_fails_and_ends_with_its_owner() -> None:
    class Failing(MemoryQueue):
        num_calls = 0

        def renew(self, leases: object) -> set[str]:
            self.num_calls += 1
            raise ConnectionError

    queue = Failing(0.04)
    queue.send("bulk", b"x")
    (lease,) = queue.receive("bulk", 1, 0)
    with LeaseKeeper(queue, watchdog_s=120.0) as keeper:
        keeper.add(lease, since=0.0)
        while queue.num_calls < 3:
            pass

    assert not keeper.is_safe(lease)
    assert not keeper._thread.is_alive()
