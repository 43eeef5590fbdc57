"""What every Queue promises, whatever is behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gristmill.queues.base import Lease, Queue
from gristmill.queues.memory import MemoryQueue

LEASE_S = 60.0


@dataclass
class Backend:
    """A Queue whose Leases last LEASE_S, and the hand on its clock."""

    queue: Queue
    advance: Callable[[float], None]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def memory_backend() -> Backend:
    clock = Clock()
    return Backend(MemoryQueue(LEASE_S, clock), clock.advance)


BACKENDS = {"memory": memory_backend}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()


def take_one(queue: Queue) -> Lease:
    (lease,) = queue.receive("bulk", 1, 0)
    return lease


def test_messages_arrive_in_order_and_only_on_their_lane(backend: Backend) -> None:
    for body in (b"a", b"b", b"c"):
        backend.queue.send("bulk", body)
    backend.queue.send("control", b"bell")

    first = backend.queue.receive("bulk", 2, 0)
    rest = backend.queue.receive("bulk", 9, 0)

    assert [lease.body for lease in first + rest] == [b"a", b"b", b"c"]
    assert {lease.lane for lease in first + rest} == {"bulk"}
    assert [lease.body for lease in backend.queue.receive("control", 9, 0)] == [b"bell"]


def test_a_leased_message_is_hidden_until_its_lease_ends(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    old = take_one(backend.queue)

    backend.advance(LEASE_S - 1)
    hidden = backend.queue.receive("bulk", 1, 0)
    backend.advance(2)
    new = take_one(backend.queue)

    assert hidden == []
    assert new.body == b"a"
    assert new.id != old.id


def test_a_renewed_lease_lasts_from_the_renewal_b34(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    lease = take_one(backend.queue)

    for _ in range(10):
        backend.advance(LEASE_S * 0.9)
        assert backend.queue.renew([lease]) == {lease.id}

    assert backend.queue.receive("bulk", 1, 0) == []
    assert backend.queue.ack(lease)


def test_a_lost_lease_can_do_nothing_to_its_successor(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    old = take_one(backend.queue)
    backend.advance(LEASE_S + 1)
    new = take_one(backend.queue)

    assert backend.queue.renew([old, new]) == {new.id}
    assert not backend.queue.ack(old)
    assert not backend.queue.release(old)
    assert backend.queue.receive("bulk", 1, 0) == []
    assert backend.queue.ack(new)


def test_a_lease_that_ended_is_lost_even_when_nobody_took_the_message(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    lease = take_one(backend.queue)
    backend.advance(LEASE_S + 1)

    assert backend.queue.renew([lease]) == set()
    assert not backend.queue.ack(lease)
    assert take_one(backend.queue).body == b"a"


def test_a_released_message_is_seen_after_its_delay(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    assert backend.queue.release(take_one(backend.queue), delay_s=10)

    at_once = backend.queue.receive("bulk", 1, 0)
    backend.advance(11)

    assert at_once == []
    assert take_one(backend.queue).body == b"a"


def test_an_acknowledged_message_never_comes_back(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")
    lease = take_one(backend.queue)

    assert backend.queue.ack(lease)
    assert not backend.queue.ack(lease)
    backend.advance(LEASE_S * 10)
    assert backend.queue.receive("bulk", 1, 0) == []


def test_stats_count_what_waits_and_what_is_leased(backend: Backend) -> None:
    for body in (b"a", b"b", b"c"):
        backend.queue.send("bulk", body)
    lease = take_one(backend.queue)
    while_leased = backend.queue.stats("bulk")
    backend.queue.release(lease, delay_s=5)
    after_release = backend.queue.stats("bulk")

    assert (while_leased.visible, while_leased.leased) == (2, 1)
    assert (after_release.visible, after_release.leased) == (3, 0)
    assert backend.queue.stats("nowhere").visible == 0


def test_a_waiting_receiver_wakes_when_a_message_is_sent(backend: Backend) -> None:
    received: list[Lease] = []
    waiter = threading.Thread(
        target=lambda: received.extend(backend.queue.receive("bulk", 1, wait_s=30))
    )
    waiter.start()

    backend.queue.send("bulk", b"a")
    waiter.join(timeout=10)

    assert [lease.body for lease in received] == [b"a"]


def test_a_message_wakes_the_receiver_of_its_own_lane(backend: Backend) -> None:
    received: list[Lease] = []
    waiters = [
        threading.Thread(
            target=lambda lane=lane: received.extend(backend.queue.receive(lane, 1, wait_s=5))
        )
        for lane in ("bulk", "control")
    ]
    for waiter in waiters:
        waiter.start()
    began = time.monotonic()

    for lane in ("control", "bulk"):
        backend.queue.send(lane, lane.encode())
    for waiter in waiters:
        waiter.join()

    assert sorted(lease.body for lease in received) == [b"bulk", b"control"]
    assert time.monotonic() - began < 4


@dataclass
class Held:
    lease: Lease
    ends_at: float


@dataclass
class Model:
    """What must be true of a Lane, kept the simple way."""

    now: float = 0.0
    waiting: dict[bytes, float] = field(default_factory=dict)
    held: dict[bytes, Held] = field(default_factory=dict)
    lost: list[Lease] = field(default_factory=list)

    def expire(self) -> None:
        for body, held in list(self.held.items()):
            if held.ends_at <= self.now:
                self.lost.append(self.held.pop(body).lease)
                self.waiting[body] = self.now


class LeaseLife(RuleBasedStateMachine):
    """No message is lost, none is held by two live Leases, expired ones come back."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = memory_backend()
        self.model = Model()
        self.num_sent = 0

    @rule()
    def send(self) -> None:
        body = f"m{self.num_sent}".encode()
        self.num_sent += 1
        self.backend.queue.send("bulk", body)
        self.model.waiting[body] = self.model.now

    @rule(count=st.integers(1, 3))
    def receive(self, count: int) -> None:
        due = [body for body, at in self.model.waiting.items() if at <= self.model.now]

        leases = self.backend.queue.receive("bulk", count, 0)

        assert len(leases) == min(count, len(due))
        for lease in leases:
            assert lease.body in due
            del self.model.waiting[lease.body]
            self.model.held[lease.body] = Held(lease, self.model.now + LEASE_S)

    @rule(seconds=st.sampled_from([1.0, 20.0, 59.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.backend.advance(seconds)
        self.model.now += seconds
        self.model.expire()

    @rule()
    def renew_everything_ever_held(self) -> None:
        held = {h.lease.id for h in self.model.held.values()}
        leases = [h.lease for h in self.model.held.values()] + self.model.lost

        assert self.backend.queue.renew(leases) == held

        for h in self.model.held.values():
            h.ends_at = self.model.now + LEASE_S

    @precondition(lambda self: self.model.held)
    @rule(choice=st.randoms(use_true_random=False), delay_s=st.sampled_from([0.0, 30.0]))
    def release(self, choice: object, delay_s: float) -> None:
        body = choice.choice(sorted(self.model.held))  # type: ignore[attr-defined]
        held = self.model.held.pop(body)

        assert self.backend.queue.release(held.lease, delay_s)

        self.model.lost.append(held.lease)
        self.model.waiting[body] = self.model.now + delay_s

    @precondition(lambda self: self.model.held)
    @rule(choice=st.randoms(use_true_random=False))
    def ack(self, choice: object) -> None:
        body = choice.choice(sorted(self.model.held))  # type: ignore[attr-defined]
        held = self.model.held.pop(body)

        assert self.backend.queue.ack(held.lease)

        self.model.lost.append(held.lease)

    @precondition(lambda self: self.model.lost)
    @rule(choice=st.randoms(use_true_random=False))
    def a_lost_lease_is_refused(self, choice: object) -> None:
        lease = choice.choice(self.model.lost)  # type: ignore[attr-defined]

        assert not self.backend.queue.ack(lease)
        assert not self.backend.queue.release(lease)

    @invariant()
    def nothing_is_lost(self) -> None:
        stats = self.backend.queue.stats("bulk")
        assert (stats.visible, stats.leased) == (len(self.model.waiting), len(self.model.held))


TestLeaseLife = LeaseLife.TestCase
TestLeaseLife.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
