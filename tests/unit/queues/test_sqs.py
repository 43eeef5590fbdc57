"""What only SQS must promise: its queues and their nets, rooms, polls, and Leases of 12 hours."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aws_server import AwsServer, aws
from unruly_proxy import Reply, Request, Rule, UnrulyProxy, json_reply, unruly_proxy

from gristmill.errors import QueueRefused, UsageError
from gristmill.queues.base import LaneStats
from gristmill.queues.open import open_queue
from gristmill.queues.sqs import SqsQueue, open_url

__all__ = ["aws"]

HOUR_S = 3600.0


@pytest.fixture
def proxy(aws: AwsServer) -> Iterator[UnrulyProxy]:
    with unruly_proxy(aws.url) as proxy:
        yield proxy


@pytest.fixture
def prefix() -> str:
    return f"t-{secrets.token_hex(6)}"


@pytest.fixture
def queue(proxy: UnrulyProxy, prefix: str) -> SqsQueue:
    return open_url(f"sqs://{prefix}?endpoint={proxy.url}", 60.0)


def asked(proxy: UnrulyProxy, action: str) -> list[dict[str, Any]]:
    """The requests of one kind that the server saw."""
    return [
        json.loads(request.body)
        for request in proxy.seen
        if request.headers.get("X-Amz-Target") == f"AmazonSQS.{action}"
    ]


def attributes(aws: AwsServer, name: str) -> dict[str, str]:
    client = aws.client("sqs")
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])[
        "Attributes"
    ]
    return found


def messages(aws: AwsServer, name: str) -> list[dict[str, Any]]:
    client = aws.client("sqs")
    found: list[dict[str, Any]] = client.receive_message(
        QueueUrl=client.get_queue_url(QueueName=name)["QueueUrl"],
        MaxNumberOfMessages=10,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
    ).get("Messages", [])
    return found


def test_a_lane_is_a_standard_queue_with_a_net_for_dead_letters(
    queue: SqsQueue, aws: AwsServer, prefix: str
) -> None:
    queue.send("bulk", b"a")

    lane, dead = attributes(aws, f"{prefix}-bulk"), attributes(aws, f"{prefix}-bulk-dead")
    redrive = json.loads(lane["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"] == dead["QueueArn"]
    assert int(redrive["maxReceiveCount"]) == 100
    assert lane["VisibilityTimeout"] == "60"
    assert {lane["MessageRetentionPeriod"], dead["MessageRetentionPeriod"]} == {"1209600"}


def test_a_dead_letter_keeps_its_body_and_the_reason(
    queue: SqsQueue, aws: AwsServer, prefix: str
) -> None:
    queue.send("bulk", b"not a pointer")
    (lease,) = queue.receive("bulk", 1, 0)

    assert queue.dead_letter(lease, "it is\0 no pointer")

    (dead,) = messages(aws, f"{prefix}-bulk-dead")
    assert dead["Body"] == "not a pointer"
    assert dead["MessageAttributes"]["reason"]["StringValue"] == "it is no pointer"
    assert queue.stats("bulk").dead == 1


def test_stats_come_from_the_attributes_of_the_queue(queue: SqsQueue) -> None:
    for _ in range(3):
        queue.send("bulk", b"a")
    queue.receive("bulk", 1, 0)

    stats = queue.stats("bulk")

    assert (stats.visible, stats.leased, stats.dead, stats.oldest_age_s) == (2, 1, 0, None)


def test_the_tenant_is_the_message_group_so_that_sqs_is_fair(
    queue: SqsQueue, aws: AwsServer, prefix: str
) -> None:
    queue.send("bulk", b"a", tenant_id="ten_1")
    queue.send("bulk", b"b")

    groups = {
        m["Body"]: m["Attributes"].get("MessageGroupId") for m in messages(aws, f"{prefix}-bulk")
    }
    assert groups == {"a": "ten_1", "b": None}


def test_a_server_without_fair_queues_gets_no_groups(queue: SqsQueue, proxy: UnrulyProxy) -> None:
    def refuse_group(request: Request, forward: Callable[[], Reply]) -> Reply:
        document = {
            "__type": "com.amazonaws.sqs#InvalidParameterValue",
            "message": "The request include parameter that is not valid for this queue type",
        }
        return json_reply(400, json.dumps(document).encode())

    proxy.rules = [Rule(refuse_group, lambda r: b"MessageGroupId" in r.body, times=100)]
    for _ in range(2):
        queue.send("bulk", b"a", tenant_id="ten_1")

    assert ["MessageGroupId" in message for message in asked(proxy, "SendMessage")] == [
        True, False, False,
    ]  # fmt: skip


def test_messages_that_do_not_fit_are_not_even_asked_for(
    queue: SqsQueue, aws: AwsServer, prefix: str
) -> None:
    """Each receive counts towards the redrive: none is wasted when messages are of one size."""
    for _ in range(6):
        queue.send("bulk", b"a", num_rows=256, num_tokens=60_000)

    for _ in range(3):
        taken = queue.receive("bulk", 10, 0, max_rows=600, max_tokens=130_000)
        assert len(taken) == 2
        queue.release(taken[0])

    counts = [
        int(m["Attributes"]["ApproximateReceiveCount"]) for m in messages(aws, f"{prefix}-bulk")
    ]
    assert sum(counts) - len(counts) == 3


def test_waiting_is_long_polling_and_ends_in_time(proxy: UnrulyProxy, prefix: str) -> None:
    now = 0.0

    def wait(request: Request, forward: Callable[[], Reply]) -> Reply:
        nonlocal now
        now += json.loads(request.body)["WaitTimeSeconds"]
        return json_reply(200, b"{}")

    queue = open_url(f"sqs://{prefix}?endpoint={proxy.url}", 60.0, clock=lambda: now)
    proxy.rules = [Rule(wait, lambda r: r.headers["X-Amz-Target"].endswith("ReceiveMessage"), 99)]

    assert queue.receive("bulk", 1, wait_s=33) == []
    one_lane = [request["WaitTimeSeconds"] for request in asked(proxy, "ReceiveMessage")]
    proxy.seen.clear()
    assert queue.receive(["urgent", "bulk"], 1, wait_s=3) == []
    two_lanes = [request["WaitTimeSeconds"] for request in asked(proxy, "ReceiveMessage")]

    proxy.seen.clear()
    assert queue.receive("bulk", 1, wait_s=0.2) == []
    for_a_moment = [request["WaitTimeSeconds"] for request in asked(proxy, "ReceiveMessage")]

    assert one_lane == [15, 15, 3]
    assert for_a_moment == [1], "a short poll sees only some of the servers of SQS"
    assert two_lanes == [0, 0, 1, 1, 1, 0]


def test_B34_F24_a_lease_can_be_held_for_eleven_hours_and_never_beyond_twelve(
    aws: AwsServer, prefix: str
) -> None:
    passed = 0.0
    queue = open_url(
        f"sqs://{prefix}?endpoint={aws.url}", HOUR_S, clock=lambda: time.monotonic() + passed
    )

    def hours_pass(hours: float) -> None:
        nonlocal passed
        passed += hours * HOUR_S
        aws.advance(hours * HOUR_S)

    queue.send("bulk", b"a")
    (lease,) = queue.receive("bulk", 1, 0)
    for _ in range(14):
        hours_pass(0.8)
        assert queue.renew([lease]) == {lease.id}  # the server refuses what is beyond the limit
    assert 14 * 0.8 * HOUR_S > lease.max_hold_s == 11 * HOUR_S
    assert queue.receive("bulk", 1, 0) == []

    hours_pass(0.81)

    assert queue.renew([lease]) == set()
    assert not queue.ack(lease)
    (again,) = queue.receive("bulk", 1, 0)
    assert again.body == b"a"


def test_B34_a_server_that_extends_no_more_makes_the_lease_lost_and_no_other(
    aws: AwsServer, prefix: str
) -> None:
    """The server's clock runs ahead: it refuses the whole request for the sake of one message."""
    queue = open_url(f"sqs://{prefix}?endpoint={aws.url}", 11 * HOUR_S)
    queue.send("bulk", b"old")
    leases = {lease.body: lease for lease in queue.receive("bulk", 10, 0)}
    aws.advance(10 * HOUR_S)
    queue.send("bulk", b"new")
    leases |= {lease.body: lease for lease in queue.receive("bulk", 10, 0)}

    assert queue.renew(leases.values()) == {leases[b"new"].id}

    assert not queue.release(leases[b"old"])
    assert queue.ack(leases[b"new"])


def test_a_delay_that_leads_beyond_twelve_hours_is_shortened(
    queue: SqsQueue, proxy: UnrulyProxy
) -> None:
    queue.send("bulk", b"a")
    (lease,) = queue.receive("bulk", 1, 0)

    assert queue.release(lease, delay_s=12 * HOUR_S + 1)

    (request,) = asked(proxy, "ChangeMessageVisibilityBatch")
    assert 12 * HOUR_S - 5 <= request["Entries"][0]["VisibilityTimeout"] <= 12 * HOUR_S


def test_B36_F15_a_queue_that_was_removed_is_made_again(
    queue: SqsQueue, aws: AwsServer, prefix: str
) -> None:
    client = aws.client("sqs")

    def remove() -> None:
        for url in client.list_queues(QueueNamePrefix=prefix)["QueueUrls"]:
            client.delete_queue(QueueUrl=url)

    queue.send("bulk", b"lost")
    (lease,) = queue.receive("bulk", 1, 0)
    remove()

    assert queue.stats("bulk") == LaneStats(0, 0, 0, None)
    assert queue.renew([lease]) == set()
    assert not queue.ack(lease)
    assert queue.receive("bulk", 1, 0) == []
    remove()
    queue.send("bulk", b"rung again")
    (second,) = queue.receive("bulk", 1, 0)
    assert second.body == b"rung again"
    for url in client.list_queues(QueueNamePrefix=f"{prefix}-bulk-dead")["QueueUrls"]:
        client.delete_queue(QueueUrl=url)
    assert queue.dead_letter(second, "no reason")
    assert queue.stats("bulk").dead == 1


def test_a_lane_that_may_not_be_made_is_named(aws: AwsServer, prefix: str) -> None:
    with pytest.raises(QueueRefused, match=f"no queue '{prefix}-control'.*create=no"):
        open_queue(f"sqs://{prefix}?endpoint={aws.url}&create=no", 60.0)

    open_queue(f"sqs://{prefix}?endpoint={aws.url}", 60.0).close()
    open_queue(f"sqs://{prefix}?endpoint={aws.url}&create=no", 60.0).close()


def test_a_name_that_dead_letters_need_is_refused(queue: SqsQueue) -> None:
    with pytest.raises(QueueRefused, match="are taken"):
        queue.send("bulk-dead", b"a")


@pytest.mark.parametrize("body", [b"\xff", b"a\0b"])
def test_a_body_that_is_no_text_is_refused(queue: SqsQueue, body: bytes) -> None:
    with pytest.raises(QueueRefused, match=r"UTF-8 text|XML allows"):
        queue.send("bulk", body)


@pytest.mark.parametrize(
    ("url", "lease_s", "said"),
    [
        ("sqs://", 60, "cannot begin the names"),
        ("sqs://a.b", 60, "cannot begin the names"),
        (f"sqs://{'a' * 27}", 60, "26 at most"),
        ("sqs://a/b", 60, "write sqs://PREFIX"),
        ("sqs://a", 1.0, "a Lease on SQS lasts from 2 to 39600 s"),
        ("sqs://a", 12 * HOUR_S, "a Lease on SQS lasts from 2 to 39600 s"),
        ("sqs://a?create=perhaps", 60, "one of yes, no"),
        ("sqs://key:secret@a", 60, "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_bad_url_is_refused_with_the_way_out(url: str, lease_s: float, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_queue(f"{url}{'&' if '?' in url else '?'}region=eu-west-1", lease_s)
    assert "secret" not in str(caught.value)


def test_aws_itself_needs_a_region(aws: AwsServer) -> None:
    with pytest.raises(UsageError, match="region="):
        open_queue("sqs://a", 60.0)
