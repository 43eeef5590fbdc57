"""What every Queue promises about its messages, whatever is behind it."""

from __future__ import annotations

import threading
import time

import pytest
from queues import Backend, bodies, take_all, take_one

from gristmill.errors import QueueRefused
from gristmill.queues.base import MAX_BODY_BYTES, Lease


def test_messages_arrive_in_order_and_only_on_their_lane(backend: Backend) -> None:
    for body in (b"a", b"b", b"c"):
        backend.queue.send("bulk", body)
    backend.queue.send("control", b"bell")

    first = backend.queue.receive("bulk", 2, 0)
    leases = first + take_all(backend.queue)

    assert 1 <= len(first) <= 2
    found = bodies(leases)
    assert (found if backend.is_exact else sorted(found)) == [b"a", b"b", b"c"]
    assert {lease.lane for lease in leases} == {"bulk"}
    assert bodies(take_all(backend.queue, "control")) == [b"bell"]


def test_the_body_comes_back_as_it_was_sent(backend: Backend) -> None:
    body = '{"name": "Größe <&> \u2028 \U0001f600 \t\n"}'.encode()
    backend.queue.send("bulk", body)

    assert take_one(backend.queue).body == body


def test_several_lanes_are_emptied_in_the_order_in_which_they_are_named(backend: Backend) -> None:
    backend.queue.send("bulk", b"later")
    backend.queue.send("urgent", b"first")

    assert bodies(take_all(backend.queue, ["urgent", "bulk", "empty"])) == [b"first", b"later"]


def test_receive_takes_what_fits_into_free_rows_and_tokens(backend: Backend) -> None:
    for name in (b"a", b"b", b"c"):
        backend.queue.send("bulk", name, num_rows=4, num_tokens=100)

    by_rows = backend.queue.receive("bulk", 9, 0, max_rows=11)
    backend.queue.ack(*by_rows)
    by_tokens = backend.queue.receive("bulk", 9, 0, max_tokens=199)

    # A server may give less than fits, never more.
    assert 1 <= len(by_rows) <= 2
    assert len(by_tokens) == 1
    if backend.is_exact:
        assert (bodies(by_rows), bodies(by_tokens)) == ([b"a", b"b"], [b"c"])


def test_a_message_that_is_larger_than_the_room_does_not_wait_for_ever(backend: Backend) -> None:
    backend.queue.send("bulk", b"large", num_rows=256, num_tokens=60_000)

    assert bodies(backend.queue.receive("bulk", 9, 0, max_rows=3, max_tokens=10)) == [b"large"]


def test_without_room_nothing_is_taken(backend: Backend) -> None:
    backend.queue.send("bulk", b"a")

    assert backend.queue.receive("bulk", 9, 0, max_rows=0) == []
    assert backend.queue.receive("bulk", 9, 0, max_tokens=-1) == []
    assert take_one(backend.queue).body == b"a"


def test_a_message_that_did_not_fit_is_there_for_others_at_once(backend: Backend) -> None:
    for name in (b"a", b"b"):
        backend.queue.send("bulk", name, num_rows=4)

    (first,) = backend.queue.receive("bulk", 9, 0, max_rows=5)
    (second,) = take_all(backend.queue)

    assert {first.body, second.body} == {b"a", b"b"}


def test_an_id_that_waits_is_not_sent_twice(backend: Backend) -> None:
    if not backend.knows_ids:
        pytest.skip("this server may double a message")
    for _ in range(3):
        backend.queue.send("bulk", b"a", message_id="shard-1")
    backend.queue.send("bulk", b"b", message_id="shard-2")
    backend.queue.send("other", b"a", message_id="shard-1")

    assert bodies(take_all(backend.queue)) == [b"a", b"b"]
    assert bodies(take_all(backend.queue, "other")) == [b"a"]


def test_an_id_that_came_back_waits_like_any_other(backend: Backend) -> None:
    if not backend.knows_ids:
        pytest.skip("this server may double a message")
    for name in ("expires", "released", "delayed"):
        backend.queue.send(name, b"a", message_id="shard-1")
    backend.queue.receive("expires", 1, 0)
    backend.advance(backend.lease_s * 1.1)
    backend.queue.release(backend.queue.receive("released", 1, 0)[0])
    backend.queue.release(backend.queue.receive("delayed", 1, 0)[0], backend.lease_s)

    for name in ("expires", "released", "delayed"):
        backend.queue.send(name, b"a", message_id="shard-1")

    visible = [backend.queue.stats(name).visible for name in ("expires", "released", "delayed")]
    assert visible == [1, 1, 1]


def test_an_id_under_a_lease_or_gone_can_be_sent_again(backend: Backend) -> None:
    """A sweep must be able to ring past a holder that hangs, and twice in the life of a Shard."""
    backend.queue.send("bulk", b"a", message_id="shard-1")
    hanging = take_one(backend.queue)
    backend.queue.send("bulk", b"a", message_id="shard-1")
    second = take_one(backend.queue)
    assert backend.queue.ack(hanging)

    backend.queue.send("bulk", b"a", message_id="shard-1")
    third = take_one(backend.queue)

    assert backend.queue.ack(second, third)
    backend.queue.send("bulk", b"a", message_id="shard-1")
    assert take_one(backend.queue).body == b"a"


def test_the_late_end_of_an_old_holder_does_not_forget_the_id_of_a_newer_message(
    backend: Backend,
) -> None:
    if not backend.knows_ids:
        pytest.skip("this server may double a message")
    backend.queue.send("bulk", b"a", message_id="shard-1")
    hanging = take_one(backend.queue)
    backend.queue.send("bulk", b"a", message_id="shard-1")
    assert backend.queue.ack(hanging)

    backend.queue.send("bulk", b"a", message_id="shard-1")

    assert bodies(take_all(backend.queue)) == [b"a"]


def test_stats_count_what_waits_and_what_is_leased(backend: Backend) -> None:
    if not backend.is_exact:
        pytest.skip("this server counts roughly")
    for body in (b"a", b"b", b"c"):
        backend.queue.send("bulk", body)
    lease = take_one(backend.queue)
    while_leased = backend.queue.stats("bulk")
    backend.queue.release(lease, delay_s=5)
    after_release = backend.queue.stats("bulk")
    (expiring, _) = take_all(backend.queue)
    all_out = backend.queue.stats("bulk")
    backend.advance(backend.lease_s * 1.1)
    after_expiry = backend.queue.stats("bulk")

    assert (while_leased.visible, while_leased.leased) == (2, 1)
    assert (after_release.visible, after_release.leased) == (3, 0)
    assert (all_out.visible, all_out.leased) == (1, 2)
    assert (after_expiry.visible, after_expiry.leased) == (3, 0)
    assert not backend.queue.ack(expiring)


def test_stats_of_a_lane_that_was_never_used_are_zero(backend: Backend) -> None:
    stats = backend.queue.stats("nowhere")

    assert (stats.visible, stats.leased, stats.dead, stats.oldest_age_s) == (0, 0, 0, None)


def test_a_message_for_a_lane_that_nobody_listens_on_goes_nowhere(backend: Backend) -> None:
    backend.queue.send("run-1", b"too early", makes_lane=False)
    before = backend.queue.receive("run-1", 1, 0)
    backend.queue.send("run-1", b"heard", makes_lane=False)

    assert before == []
    assert bodies(take_all(backend.queue, "run-1")) == [b"heard"]


def test_a_lane_that_is_removed_is_gone_with_all_that_lay_on_it(backend: Backend) -> None:
    for body in (b"held", b"waiting"):
        backend.queue.send("run-1", body, message_id=body.decode())
    backend.queue.send("bulk", b"stays")
    (lease,) = backend.queue.receive("run-1", 1, 0)

    backend.queue.remove_lane("run-1")
    backend.queue.remove_lane("run-1")  # there is none any more

    stats = backend.queue.stats("run-1")
    assert (stats.visible, stats.leased, stats.dead) == (0, 0, 0)
    assert backend.queue.renew([lease]) == set()
    backend.queue.ack(lease)
    backend.queue.send("run-1", b"too late", makes_lane=False)
    assert take_all(backend.queue, "run-1") == []
    assert bodies(take_all(backend.queue)) == [b"stays"]


def test_a_lane_that_is_used_again_after_its_removal_is_a_new_one(backend: Backend) -> None:
    backend.queue.send("run-1", b"old", message_id="same")
    backend.queue.remove_lane("run-1")

    backend.queue.send("run-1", b"new", message_id="same")

    assert bodies(take_all(backend.queue, "run-1")) == [b"new"]


def test_a_waiting_receiver_wakes_when_a_message_is_sent(backend: Backend) -> None:
    received: list[Lease] = []
    waiters = [
        threading.Thread(
            target=lambda lane=lane: received.extend(backend.queue.receive(lane, 1, wait_s=20))
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
    assert time.monotonic() - began < 20


def test_a_receiver_waits_no_longer_than_it_was_told(backend: Backend) -> None:
    began = time.monotonic()

    assert backend.queue.receive(["urgent", "bulk"], 1, wait_s=0.05) == []

    assert time.monotonic() - began < 15


@pytest.mark.parametrize("lane", ["", "a b", "a/b", "a.b", "-a", "ä", "a" * 49])
def test_a_lane_that_not_every_server_can_have_is_refused(backend: Backend, lane: str) -> None:
    for call in (
        lambda: backend.queue.send(lane, b"a"),
        lambda: backend.queue.receive(["bulk", lane], 1, 0),
        lambda: backend.queue.stats(lane),
        lambda: backend.queue.remove_lane(lane),
    ):
        with pytest.raises(QueueRefused, match="no name of a Lane"):
            call()


def test_B39_a_message_is_a_pointer_and_never_data(backend: Backend) -> None:
    backend.queue.send("bulk", b"x" * MAX_BODY_BYTES)

    with pytest.raises(QueueRefused, match="send a pointer"):
        backend.queue.send("bulk", b"x" * (MAX_BODY_BYTES + 1))

    assert len(take_one(backend.queue).body) == MAX_BODY_BYTES
