"""Any order of calls and of time keeps what a Queue promises: nothing lost, one live Lease."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from queues import BACKENDS

from gristmill.queues.base import Lease, Queue


@dataclass
class Held:
    lease: Lease
    ends_at: float


@dataclass
class Model:
    """What must be true of a Lane, kept the simple way. Times count in Leases."""

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
    """Of one exact Queue, in the hands of two clients where it can have two."""

    backend_name: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.backend = self.stack.enter_context(BACKENDS[self.backend_name]())
        self.clients = [self.backend.queue]
        if self.backend.connect is not None:
            self.clients.append(self.backend.connect())
        self.owner: dict[str, int] = {}
        self.model = Model()
        self.num_sent = 0

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        self.stack.close()

    @rule()
    def send(self) -> None:
        body = f"m{self.num_sent}".encode()
        self.num_sent += 1
        for _ in range(2):
            self.backend.queue.send("bulk", body, message_id=body.decode())
        self.model.waiting[body] = self.model.now

    @rule(count=st.integers(1, 3), who=st.integers(0, 1))
    def receive(self, count: int, who: int) -> None:
        due = [body for body, at in self.model.waiting.items() if at <= self.model.now]
        who = who % len(self.clients)

        leases = self.clients[who].receive("bulk", 9, 0, max_rows=count)

        assert len(leases) == min(count, len(due))
        for lease in leases:
            assert lease.body in due
            assert lease.id not in {old.id for old in self.model.lost if who == self.by(old)}
            del self.model.waiting[lease.body]
            self.model.held[lease.body] = Held(lease, self.model.now + 1)
            self.owner[lease.id] = who

    @rule(share=st.sampled_from([0.1, 0.4, 0.95, 1.1]))
    def time_passes(self, share: float) -> None:
        self.backend.advance(share * self.backend.lease_s)
        self.model.now += share
        self.model.expire()

    @rule()
    def renew_everything_ever_held(self) -> None:
        held = [h.lease for h in self.model.held.values()]
        for who, client in enumerate(self.clients):
            mine = {lease.id for lease in held if self.by(lease) == who}
            assert client.renew(held + self.model.lost) == mine
        for h in self.model.held.values():
            h.ends_at = self.model.now + 1

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 0.5, 3.0]))
    def release(self, data: st.DataObject, delay: float) -> None:
        lease = self.give_up(data)

        assert self.of(lease).release(lease, delay * self.backend.lease_s)

        self.model.waiting[lease.body] = self.model.now + delay

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        lease = self.give_up(data)

        assert self.of(lease).ack(lease)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def dead_letter(self, data: st.DataObject) -> None:
        lease = self.give_up(data)

        assert self.of(lease).dead_letter(lease, "nobody can use it")

    @precondition(lambda self: self.model.lost)
    @rule(data=st.data())
    def a_lost_lease_is_refused(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.model.lost))

        assert not self.of(lease).ack(lease)
        assert not self.of(lease).release(lease)
        assert not self.of(lease).dead_letter(lease, "too late")

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def what_waits_is_not_sent_again(self, data: st.DataObject) -> None:
        body = data.draw(st.sampled_from(sorted(self.model.waiting)))

        self.backend.queue.send("bulk", body, message_id=body.decode())

    @invariant()
    def nothing_is_lost(self) -> None:
        stats = self.backend.queue.stats("bulk")
        assert (stats.visible, stats.leased) == (len(self.model.waiting), len(self.model.held))

    def by(self, lease: Lease) -> int:
        return self.owner[lease.id]

    def of(self, lease: Lease) -> Queue:
        return self.clients[self.by(lease)]

    def give_up(self, data: st.DataObject) -> Lease:
        """A Lease that is held, and is not any more."""
        body = data.draw(st.sampled_from(sorted(self.model.held)))
        lease = self.model.held.pop(body).lease
        self.model.lost.append(lease)
        return lease


def life_of(name: str) -> type[TestCase]:
    machine = type(f"LeaseLife_{name}", (LeaseLife,), {"backend_name": name})
    case: type[TestCase] = machine.TestCase
    case.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
    return case


TestMemory = life_of("memory")
TestRedis6 = life_of("redis6")
TestRedis8 = life_of("redis8")
TestValkey = life_of("valkey")
