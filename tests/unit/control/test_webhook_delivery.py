"""From the end of a batch to its receiver: whatever dies on the way, it arrives once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import patch

import pytest
from pipeline import TENANT, Crash, make_job, make_result, make_segment, make_windows
from postgresql import postgresql as postgresql
from postgresql import postgresql_process as postgresql_process
from webhook_bench import DAY_S, WebhookBench, is_pending
from webhook_bench import disarmed as disarmed
from webhook_bench import hooks as hooks
from webhook_bench import receiver as receiver
from webhook_receiver import Call, Receiver, Reply

from gristmill import crash_points
from gristmill.control import webhooks as deliverer
from gristmill.control.accept import accept
from gristmill.control.finalize import finalize, freeze
from gristmill.control.sweep import sweep
from gristmill.errors import LineError
from gristmill.ledger import batches
from gristmill.ledger.deliveries import DeliveryState
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.ledger.webhooks import EventType
from gristmill.process.control import LoopedControl, WebhookControl
from gristmill.process.loop_thread import LoopThread
from gristmill.stores.keys import segment_key
from gristmill.stores.segments import bell_of
from gristmill.wire import encode_segment


def raise_crash(*_: object, **__: object) -> None:
    raise Crash


def test_each_end_is_one_event_in_the_words_of_openai(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    endpoint = hooks.listen(receiver.url)
    hooks.end("batch_1")
    hooks.create("batch_2", expires_at=hooks.now)
    sweep(hooks.control)
    hooks.create("batch_3")
    with hooks.control.ledger.write() as conn:
        batches.transition(conn, TENANT, "batch_3", BatchStatus.CANCELLING, hooks.now)
    sweep(hooks.control)
    hooks.create("batch_4")
    wrong = (LineError("invalid_json_line", "No JSON.", 1),)
    with hooks.control.ledger.write() as conn:
        for _ in range(2):
            batches.fail_validation(
                conn, TENANT, "batch_4", errors=wrong, num_errors=1, now=hooks.now
            )

    hooks.deliver()

    told = {call.event["data"]["id"]: call for call in receiver.calls}
    assert {batch_id: call.event["type"] for batch_id, call in told.items()} == {
        "batch_1": "batch.completed",
        "batch_2": "batch.expired",
        "batch_3": "batch.cancelled",
        "batch_4": "batch.failed",
    }
    assert len(receiver.calls) == 4 and hooks.deliver() == 0
    for call in receiver.calls:
        assert set(call.event) == {"id", "object", "type", "created_at", "data"}
        assert set(call.event["data"]) == {"id"} and call.event["object"] == "event"
        assert call.event["created_at"] == hooks.now and call.id == call.event["id"]
        assert call.is_signed_with(endpoint.secret) and "." not in call.id


def test_F13_killed_before_the_end_is_committed_nobody_hears_and_after_it_somebody_does(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    hooks.listen(receiver.url)

    crash_points.arm({crash_points.CRASH_POINT: "publishing=raise"})
    with pytest.raises(crash_points.CrashPointReached):
        hooks.end("batch_1")
    before = (hooks.bench.batch.status, hooks.events(), hooks.deliver())
    crash_points.arm({crash_points.CRASH_POINT: "published=raise"})
    with pytest.raises(crash_points.CrashPointReached):
        sweep(hooks.control)
    (event,) = hooks.events()
    sweep(hooks.control)
    finalize(hooks.control, TENANT, "batch_1")
    num_attempts = hooks.deliver(replace(hooks.control))  # another process

    assert before == (BatchStatus.FINALIZING, [], 0)
    assert [call.id for call in receiver.calls] == [event.id] and num_attempts == 1
    assert hooks.events() == [event]


def test_F37_killed_after_the_post_it_is_sent_again_with_the_same_id_and_bytes(
    hooks: WebhookBench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.listen(receiver.url)
    hooks.end("batch_1")

    with monkeypatch.context() as patched:
        patched.setattr(deliverer, "_note", raise_crash)
        with pytest.raises(Crash):
            hooks.deliver()
    at_once = hooks.deliver()
    hooks.bench.clock.advance(61)
    later = hooks.deliver()

    first, second = receiver.calls
    assert (at_once, later) == (0, 1)
    assert (first.id, first.body) == (second.id, second.body)
    assert hooks.deliveries()[0].state is DeliveryState.DELIVERED


def test_a_service_that_is_alone_need_not_wait_for_the_one_that_was_killed(
    hooks: WebhookBench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.listen(receiver.url)
    hooks.end("batch_1")
    with monkeypatch.context() as patched:
        patched.setattr(deliverer, "_note", raise_crash)
        with pytest.raises(Crash):
            hooks.deliver()
    stop = threading.Event()
    receiver.answer = lambda call: (stop.set(), Reply())[1]

    deliverer.WebhookLoop(hooks.control, is_sole=True).run(stop)

    assert len(receiver.calls) == 2
    assert hooks.deliveries()[0].state is DeliveryState.DELIVERED


def test_webhooks_may_have_a_process_of_their_own(hooks: WebhookBench, receiver: Receiver) -> None:
    hooks.listen(receiver.url)
    hooks.end("batch_1")
    stop, loop = threading.Event(), deliverer.WebhookLoop
    rest = LoopedControl(hooks.control, [], sends_webhooks=False)

    with patch.object(loop, "run", autospec=True, side_effect=loop.run) as run:
        threads = [LoopThread(c.run, stop, name="c") for c in (rest, WebhookControl(hooks.control))]
        receiver.wait(1)
        stop.set()
        for thread in threads:
            thread.join()

    assert run.call_count == 1
    assert len(receiver.calls) == 1


def test_a_receiver_that_was_down_for_a_day_hears_all_once_it_is_up(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    endpoint = hooks.listen(receiver.url)
    hooks.end("batch_1", "batch_2", "batch_3")
    receiver.stop()
    down_until = hooks.now + DAY_S

    hooks.deliver_until(down_until)
    waiting = hooks.deliveries()
    receiver.start()
    hooks.deliver_until(hooks.now + 3600)

    assert len(waiting) == 3 and all(map(is_pending, waiting))
    ids = {event.id for event in hooks.events()}
    assert len(receiver.calls) == 3 and {call.id for call in receiver.calls} == ids
    assert all(call.is_signed_with(endpoint.secret) for call in receiver.calls)
    # Each attempt has the time at which it was made, the event that of its end.
    assert all(int(c.headers["webhook-timestamp"]) >= down_until for c in receiver.calls)
    assert all(c.event["created_at"] == down_until - DAY_S for c in receiver.calls)
    assert {attempt.error for attempt in hooks.attempts()} == {None, "connection_failed"}
    assert hooks.endpoint(endpoint).num_failures == 0


def test_events_need_no_order(hooks: WebhookBench, receiver: Receiver) -> None:
    hooks.listen(receiver.url)
    seen: set[str] = set()

    def refuse_first_of_batch_1(call: Call) -> Reply:
        is_first = call.id not in seen
        seen.add(call.id)
        return Reply(503 if is_first and call.event["data"]["id"] == "batch_1" else 200)

    receiver.answer = refuse_first_of_batch_1
    hooks.end("batch_1", "batch_2")

    hooks.deliver_until(hooks.now + 600)

    told = [call.event["data"]["id"] for call in receiver.calls]
    assert sorted(told) == ["batch_1", "batch_1", "batch_2"] and told[-1] == "batch_1"
    assert all(one.state is DeliveryState.DELIVERED for one in hooks.deliveries())


def test_B57_however_many_deliver_each_event_is_sent_once(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    hooks.listen(receiver.url)
    with Receiver() as other:
        hooks.listen(other.url)
        ids = [f"batch_{i:02}" for i in range(8)]
        hooks.end(*ids)

        with ThreadPoolExecutor(3) as pool:
            attempts = list(pool.map(lambda _: hooks.deliver(), range(3)))

        assert sum(attempts) == 16
        for one in (receiver, other):
            assert sorted(call.event["data"]["id"] for call in one.calls) == ids


def test_B57_a_batch_that_is_cancelled_while_it_ends_has_one_end(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    hooks.listen(receiver.url)
    hooks.create("batch_1")
    hooks.bench.ingest(make_windows([make_job(0)]))
    segment = make_segment(hooks.bench.batch, 0, [make_result(make_job(0), 0)])
    hooks.bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
    accept(hooks.control, [bell_of(segment)])
    stale = hooks.bench.batch
    freeze(hooks.control, stale, FreezeReason.COMPLETE)
    with hooks.control.ledger.write() as conn:
        cancelled = batches.transition(conn, TENANT, "batch_1", BatchStatus.CANCELLING, hooks.now)

    for _ in range(3):
        sweep(hooks.control)
        finalize(hooks.control, TENANT, "batch_1")
    hooks.deliver()

    assert not cancelled and receiver.events == ["batch.completed"]


def test_both_secrets_sign_until_the_old_one_is_over(
    hooks: WebhookBench, receiver: Receiver
) -> None:
    old = "whsec_" + "b2xk" * 10
    hooks.listen(receiver.url, old_secret=old, old_secret_until=hooks.now + 100)
    hooks.end("batch_1")
    hooks.deliver()
    hooks.bench.clock.advance(100)
    hooks.end("batch_2")
    hooks.deliver()

    during, after = receiver.calls
    assert during.is_signed_with(old) and not after.is_signed_with(old)
    assert [len(c.headers["webhook-signature"].split()) for c in (during, after)] == [2, 1]


def test_progress_is_told_to_those_who_ask_for_it(hooks: WebhookBench, receiver: Receiver) -> None:
    hooks.listen(receiver.url, event_types=(EventType.PROGRESS,))
    hooks.create("batch_1")
    jobs = [make_job(i) for i in range(8)]
    hooks.bench.ingest(make_windows(jobs))
    batch = hooks.bench.batch
    # Shards of three Jobs: 1 of 8 rows, then 3, 6, 8 are done.
    for shard_n, job_idxs in ((0, [0]), (0, [1, 2]), (1, [0, 1, 2]), (2, [0, 1])):
        results = [make_result(jobs[3 * shard_n + idx], idx) for idx in job_idxs]
        segment = make_segment(batch, shard_n, results, seq=job_idxs[0])
        hooks.bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
        for _ in range(2):
            accept(hooks.control, [bell_of(segment)])
    sweep(hooks.control)

    hooks.deliver()

    told = [(call.event["type"], call.event["data"]) for call in receiver.calls]
    assert sorted(told, key=lambda one: one[1]["percent"]) == [
        (
            "batch.progress",
            {
                "id": "batch_1",
                "percent": percent,
                "request_counts": {"total": 8, "completed": done, "failed": 0},
            },
        )
        for percent, done in ((25, 3), (75, 6))
    ]


def test_events_are_kept_for_thirty_days(hooks: WebhookBench, receiver: Receiver) -> None:
    endpoint = hooks.listen(receiver.url)
    own = hooks.listen(receiver.url, id="we_own", batch_id="batch_1")
    hooks.end("batch_1")
    hooks.deliver()
    hooks.bench.clock.advance(29 * DAY_S)
    hooks.end("batch_2")
    hooks.deliver()
    kept = len(hooks.events())
    hooks.bench.clock.advance(2 * DAY_S)
    sweep(hooks.control)

    assert kept == 2 and [event.batch_id for event in hooks.events()] == ["batch_2"]
    assert len(receiver.calls) == 3 and len(hooks.attempts()) == 1
    assert hooks.endpoint(endpoint).id == endpoint.id
    with pytest.raises(AssertionError):
        hooks.endpoint(own)
