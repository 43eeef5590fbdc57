"""SQS that throttles, fails in part, delivers twice or refuses: what becomes of Leases."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aws_server import AwsServer, aws
from ports import free_port
from unruly_proxy import (
    Act,
    Reply,
    Request,
    Rule,
    UnrulyProxy,
    json_reply,
    lose_reply,
    refuse_json,
    unruly_proxy,
)

from gristmill.errors import QueueError, QueueRefused
from gristmill.queues.base import Lease
from gristmill.queues.open import open_queue
from gristmill.queues.sqs import SqsQueue, open_url

__all__ = ["aws"]

RENEW, REMOVE = "ChangeMessageVisibilityBatch", "DeleteMessageBatch"


class OwnClock:
    """The clock of this process, apart from that of the server."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> OwnClock:
    return OwnClock()


@pytest.fixture
def proxy(aws: AwsServer) -> Iterator[UnrulyProxy]:
    with unruly_proxy(aws.url) as proxy:
        yield proxy


@pytest.fixture
def queue(proxy: UnrulyProxy, clock: OwnClock, monkeypatch: pytest.MonkeyPatch) -> SqsQueue:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    prefix = f"t-{secrets.token_hex(6)}"
    return open_url(f"sqs://{prefix}?endpoint={proxy.url}", 60.0, clock=clock)


def is_about(action: str) -> Callable[[Request], bool]:
    return lambda request: request.headers.get("X-Amz-Target") == f"AmazonSQS.{action}"


def leases_of(queue: SqsQueue, count: int) -> list[Lease]:
    for n in range(count):
        queue.send("bulk", b"m%d" % n)
    leases: list[Lease] = []
    while len(leases) < count:
        leases += queue.receive("bulk", 10, 0)
    return leases


def fail_entries(code: str, *, sender_fault: bool, last: int = 1) -> Act:
    """The server does as it is asked, but for the last entries."""

    def act(request: Request, forward: Callable[[], Reply]) -> Reply:
        document = json.loads(request.body)
        kept, failed = document["Entries"][:-last], document["Entries"][-last:]
        reply: dict[str, Any] = {"Successful": []}
        if kept:
            request.body = json.dumps({**document, "Entries": kept}).encode()
            request.headers["Content-Length"] = str(len(request.body))
            reply = json.loads(forward().body)
        reply["Failed"] = [
            {"Id": entry["Id"], "Code": code, "SenderFault": sender_fault, "Message": "by the test"}
            for entry in failed
        ]
        return json_reply(200, json.dumps(reply).encode())

    return act


def test_B34_F22_a_lease_that_ended_on_the_own_clock_is_lost_without_asking(
    queue: SqsQueue, proxy: UnrulyProxy, clock: OwnClock
) -> None:
    """The server would renew it: with the old handle, for a holder that has no right any more."""
    (lease,) = leases_of(queue, 1)
    proxy.seen.clear()
    clock.now += 60

    assert queue.renew([lease]) == set()
    assert not queue.ack(lease)
    assert not queue.release(lease)
    assert not queue.dead_letter(lease, "too late")

    assert proxy.seen == []


def test_F22_a_stale_handle_that_the_server_takes_is_no_error(
    queue: SqsQueue, aws: AwsServer
) -> None:
    (first,) = leases_of(queue, 1)
    aws.advance(61)
    (second,) = queue.receive("bulk", 1, 0)

    assert queue.renew([first, second]) == {first.id, second.id}
    assert queue.ack(first)
    assert queue.ack(second)


@pytest.mark.parametrize("code", ["ReceiptHandleIsInvalid", "MessageNotInflight"])
def test_B34_F22_a_stale_handle_that_the_server_refuses_is_a_lost_lease(
    queue: SqsQueue, proxy: UnrulyProxy, code: str
) -> None:
    good, stale = leases_of(queue, 2)
    proxy.rules = [Rule(fail_entries(code, sender_fault=True), is_about(RENEW))]

    assert queue.renew([good, stale]) == {good.id}
    assert not queue.ack(stale)

    proxy.rules = [Rule(fail_entries(code, sender_fault=True), is_about(REMOVE))]
    assert not queue.ack(good)


def test_what_failed_in_part_is_asked_for_again_by_itself(
    queue: SqsQueue, proxy: UnrulyProxy
) -> None:
    leases = leases_of(queue, 12)
    half = fail_entries("InternalError", sender_fault=False, last=2)
    for action, call in (
        (RENEW, lambda: queue.renew(leases) == {lease.id for lease in leases}),
        (REMOVE, lambda: queue.ack(*leases)),
    ):
        proxy.seen.clear()
        proxy.rules = [Rule(half, is_about(action))]

        assert call()

        sizes = [len(json.loads(r.body)["Entries"]) for r in proxy.seen if is_about(action)(r)]
        assert sizes == [10, 2, 1, 1]


def test_what_fails_twice_may_be_tried_later_and_the_others_are_renewed(
    queue: SqsQueue, proxy: UnrulyProxy, clock: OwnClock, aws: AwsServer
) -> None:
    good, bad = leases_of(queue, 2)
    proxy.rules = [Rule(fail_entries("InternalError", sender_fault=False), is_about(RENEW), 2)]

    with pytest.raises(QueueError, match=r"1 messages failed twice.*by the test") as caught:
        queue.renew([good, bad])

    assert caught.value.retryable
    assert queue.renew([good, bad]) == {good.id, bad.id}


@pytest.mark.parametrize("status", [400, 503])
def test_F23_a_throttled_heartbeat_is_repeated_within_the_lease(
    queue: SqsQueue, proxy: UnrulyProxy, status: int
) -> None:
    (lease,) = leases_of(queue, 1)
    proxy.rules = [Rule(refuse_json(status, "RequestThrottled"), is_about(RENEW), times=2)]

    assert queue.renew([lease]) == {lease.id}


def test_F23_a_heartbeat_that_stays_throttled_is_an_error_and_the_lease_goes_on(
    queue: SqsQueue, proxy: UnrulyProxy, clock: OwnClock
) -> None:
    (lease,) = leases_of(queue, 1)
    proxy.rules = [Rule(refuse_json(503, "ServiceUnavailable"), is_about(RENEW), times=3)]
    clock.now += 20

    with pytest.raises(QueueError, match="renewing Leases") as caught:
        queue.renew([lease])

    assert caught.value.retryable
    assert queue.renew([lease]) == {lease.id}


def test_F10_a_lost_reply_to_a_send_may_double_the_message_and_loses_none(
    queue: SqsQueue, proxy: UnrulyProxy
) -> None:
    proxy.rules = [Rule(lose_reply, is_about("SendMessage"))]

    queue.send("bulk", b"a", message_id="shard-1")

    found = [*queue.receive("bulk", 10, 0), *queue.receive("bulk", 10, 0)]
    assert {lease.body for lease in found} == {b"a"}
    assert len(found) <= 2


def test_F11_a_lost_reply_to_an_ack_is_no_error(
    queue: SqsQueue, proxy: UnrulyProxy, aws: AwsServer
) -> None:
    (lease,) = leases_of(queue, 1)
    proxy.rules = [Rule(lose_reply, is_about(REMOVE))]

    queue.ack(lease)  # True or False: some servers refuse the handle of what is gone

    aws.advance(61)
    assert queue.receive("bulk", 1, 0) == []


@pytest.mark.parametrize(
    ("status", "code", "said", "retryable"),
    [
        (403, "AccessDenied", "policy", False),
        (403, "InvalidClientTokenId", "credentials are not accepted", False),
        (400, "OverLimit", "120,000", True),
        (400, "QueueDeletedRecently", "60 seconds", True),
        (500, "InternalError", "inner fault", True),
    ],
)
def test_errors_say_what_to_do_and_whether_to_try_again(
    queue: SqsQueue, proxy: UnrulyProxy, status: int, code: str, said: str, retryable: bool
) -> None:
    proxy.rules = [Rule(refuse_json(status, code), is_about("ReceiveMessage"), times=100)]
    queue.send("bulk", b"a")

    with pytest.raises(QueueError, match=said) as caught:
        queue.receive("bulk", 1, 0)

    assert caught.value.retryable is retryable
    assert isinstance(caught.value, QueueRefused) is not retryable
    assert f"at {proxy.url}" in str(caught.value)


def test_a_server_that_does_not_answer_may_do_so_later(aws: AwsServer) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"

    with pytest.raises(QueueError, match="does not answer") as caught:
        open_queue(f"sqs://t?endpoint={nobody}&attempts=1", 60.0)
    assert caught.value.retryable


def test_missing_credentials_name_the_variables(
    aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(QueueRefused, match="Set AWS_ACCESS_KEY_ID"):
        open_queue(f"sqs://t?endpoint={aws.url}", 60.0)
