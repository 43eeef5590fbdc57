"""Receivers that fail, hang, ask for time or are gone: when they are tried again, and when not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, count, pairwise

import pytest
from webhook_bench import DAY_S, WebhookBench, is_pending
from webhook_bench import hooks as hooks
from webhook_bench import receiver as receiver
from webhook_receiver import Call, Receiver, Reply

from gristmill.control import webhooks as deliverer
from gristmill.control.webhook_schedule import CIRCUIT_FAILURES, SCHEDULE_S
from gristmill.control.webhooks import deliver_due
from gristmill.ledger import deliveries, webhook_events
from gristmill.ledger.deliveries import DeliveryState
from gristmill.ledger.status import BatchStatus

#: What is asked of the Ledger here, test_webhook_delivery.py asks of both.
pytestmark = pytest.mark.parametrize("hooks", ["sqlite"], indirect=True)


def test_the_schedule_lasts_three_days_and_then_ends(hooks: WebhookBench) -> None:
    with Receiver(lambda call: Reply(500)) as receiver:
        hooks.listen(receiver.url)
        hooks.end("batch_1")
        begin = hooks.now

        hooks.deliver_until(begin + 30 * DAY_S)

        times = [attempt.attempted_at - begin for attempt in hooks.attempts()]
        (delivery,) = hooks.deliveries()
        assert delivery.state is DeliveryState.FAILED
        assert 72 * 3600 <= times[-1] <= 73 * 3600 and len(times) <= 90
        planned = [0, *accumulate(SCHEDULE_S)]
        for time, of_schedule in zip(times[:CIRCUIT_FAILURES], planned, strict=False):
            assert 0.8 * of_schedule <= time <= 1.2 * of_schedule
        # From then on it is found out within the hour that the receiver is back.
        assert all(b - a <= 3600 for a, b in pairwise(times[CIRCUIT_FAILURES - 1 :]))
        assert len({call.id for call in receiver.calls}) == 1
        assert len({call.body for call in receiver.calls}) == 1


def test_410_ends_it_for_good(hooks: WebhookBench, receiver: Receiver) -> None:
    endpoint = hooks.listen(receiver.url)
    receiver.answer = lambda call: Reply(410)
    hooks.end("batch_1", "batch_2")

    hooks.deliver_until(hooks.now + 10 * DAY_S)
    hooks.end("batch_3")
    hooks.deliver_until(hooks.now + DAY_S)

    found = hooks.endpoint(endpoint)
    assert len(receiver.calls) == 1
    assert found.disabled_at is not None and "410" in (found.disabled_reason or "")
    assert {one.state for one in hooks.deliveries()} == {DeliveryState.FAILED}
    assert len(hooks.events()) == 3  # what happened is known all the same


def test_an_endpoint_that_fails_is_left_alone_and_then_asked_by_one_event(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    endpoint = hooks.listen(receiver.url)
    receiver.answer = lambda call: Reply(500)
    hooks.end(*(f"batch_{i}" for i in range(12)))

    hooks.deliver()
    at_once = len(receiver.calls)
    hooks.deliver_until(hooks.now + 3600)
    within_an_hour = len(receiver.calls) - at_once
    hooks.end("batch_late")
    num_before = len(receiver.calls)
    hooks.deliver()
    receiver.answer = lambda call: Reply(200)
    hooks.deliver_until(hooks.now + 3600)

    assert at_once == CIRCUIT_FAILURES
    assert within_an_hour <= 8
    assert len(receiver.calls) - num_before == 13  # the late one waited, too
    assert all(one.state is DeliveryState.DELIVERED for one in hooks.deliveries())
    assert hooks.endpoint(endpoint).retry_at is None


@pytest.mark.parametrize(
    ("reply", "pause_s"),
    [
        (Reply(429, {"retry-after": "7200"}), 7200),
        (Reply(503, {"retry-after": "900000"}), DAY_S),
        (Reply(502), 60),
        (Reply(504), 60),
    ],
)
def test_a_receiver_that_asks_for_time_gets_it(
    hooks: WebhookBench, receiver: Receiver, reply: Reply, pause_s: int
) -> None:
    hooks.listen(receiver.url)
    receiver.answer = lambda call: reply
    hooks.end("batch_1", "batch_2")
    begin = hooks.now

    hooks.deliver_until(begin + pause_s - 1)
    during = len(receiver.calls)
    receiver.answer = lambda call: Reply()
    hooks.deliver_until(begin + 2 * pause_s + 600)

    assert during == 1
    assert all(one.state is DeliveryState.DELIVERED for one in hooks.deliveries())


def test_an_endpoint_that_was_deaf_for_five_days_is_disabled(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    endpoint = hooks.listen(receiver.url)
    receiver.answer = lambda call: Reply(404)
    for day in range(7):
        hooks.end(f"batch_{day}")
        hooks.deliver_until(hooks.now + DAY_S)
        if hooks.endpoint(endpoint).disabled_at:
            break

    found = hooks.endpoint(endpoint)
    assert found.disabled_at is not None and "5 days" in (found.disabled_reason or "")
    assert found.disabled_at - (found.failing_since or 0) >= 5 * DAY_S
    assert not any(map(is_pending, hooks.deliveries()))


def test_B55_a_receiver_that_never_answers_holds_up_nobody_else(hooks: WebhookBench) -> None:
    over = threading.Event()

    def hang(call: Call) -> Reply:
        over.wait(60)
        return Reply()

    with Receiver(hang) as deaf, Receiver() as other:
        hooks.listen(deaf.url)
        hooks.listen(other.url)
        hooks.end(*(f"batch_{i}" for i in range(4)))
        with ThreadPoolExecutor(1) as pool:
            delivering = pool.submit(hooks.deliver)
            other.wait(4)
            hooks.end("batch_9")  # while one attempt hangs
            other.wait(5)
            was_hanging = not delivering.done()
            over.set()
            delivering.result(60)

        assert was_hanging and len(deaf.calls) == 5


def test_however_many_deaf_receivers_a_tenant_has_others_are_told(hooks: WebhookBench) -> None:
    over = threading.Event()

    def hang(call: Call) -> Reply:
        over.wait(60)
        return Reply()

    with Receiver(hang) as deaf, Receiver() as other:
        for i in range(20):
            hooks.listen(deaf.url, id=f"we_{i:02}")
        hooks.listen(other.url, tenant_id="other")
        hooks.end("batch_1")
        with ThreadPoolExecutor(1) as pool:
            delivering = pool.submit(hooks.deliver)
            deaf.wait(deliverer._MAX_OF_TENANT)
            with hooks.control.ledger.write() as conn:
                webhook_events.record_end(
                    conn, "other", "batch_2", BatchStatus.COMPLETED, now=hooks.now
                )
            other.wait(1)
            num_hanging = len(deaf.calls)
            over.set()
            delivering.result(60)

        assert num_hanging >= deliverer._MAX_OF_TENANT
        assert len(deaf.calls) == 20


def test_a_call_ends_in_time_and_leaves_the_rest_to_the_next(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    hooks.listen(receiver.url)
    hooks.end(*(f"batch_{i}" for i in range(4)))
    seconds = count(step=5)

    stopped = deliver_due(hooks.control, should_stop=lambda: True)
    in_time = deliver_due(hooks.control, monotonic=lambda: float(next(seconds)))
    rest = hooks.deliver()

    assert stopped == 0 and 0 < in_time < 4 and in_time + rest == 4
    assert len({call.id for call in receiver.calls}) == len(receiver.calls) == 4


def test_an_endpoint_that_goes_while_it_is_called_leaves_nothing(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    endpoint = hooks.listen(receiver.url)
    hooks.end("batch_1")

    def delete_it(call: Call) -> Reply:
        with hooks.control.ledger.write() as conn:
            deliverer.webhooks.delete(conn, endpoint, now=hooks.now)
            deliveries.remove_of_endpoint(conn, endpoint)
        return Reply(500)

    receiver.answer = delete_it
    hooks.deliver()

    assert len(receiver.calls) == 1 and hooks.deliveries() == []
