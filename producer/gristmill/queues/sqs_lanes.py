"""Which queue of SQS a Lane is: its name, and making it when it is not there yet."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from gristmill.aws import AWS_ERRORS, explain, is_aws
from gristmill.errors import QueueError, QueueRefused, UsageError
from gristmill.queues.base import check_lane

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,26}")  # with the longest Lane and "-dead", 80 in all
_DEAD = "-dead"
#: The longest that SQS keeps a message. A dead letter keeps the time at which it was first sent.
_RETENTION_S = 14 * 24 * 3600
#: Only a net under the nets: who may see a message again is decided by what lies in the Store.
#: Every receive counts here, so ten would condemn a Shard for ten killed spot machines.
_MAX_RECEIVES = 100

_GONE = ("NonExistentQueue", "QueueDoesNotExist")
#: What to say beyond the meaning that `aws.explain` knows; and whether to try again.
_MEANINGS = {
    "OverLimit": (
        "About 120,000 messages of this queue are in flight, the most that SQS allows: let "
        "workers finish or die before others receive.",
        True,
    ),
    "QueueDeletedRecently": (
        "SQS allows a queue of the same name 60 seconds after the old one was deleted.",
        True,
    ),
    "InvalidMessageContents": ("SQS takes only characters that XML allows.", False),
}


def is_gone(error: Exception) -> bool:
    """Whether the queue does not exist (any more)."""
    return isinstance(error, ClientError) and error_code(error) in _GONE


def error_code(error: ClientError) -> str:
    """The name that the server gives it, without the family that older protocols put before."""
    return _short(error.response.get("Error", {}).get("Code", ""))


def _short(code: str) -> str:
    return code.removeprefix("AWS.SimpleQueueService.")


def count_messages(client: SQSClient, url: str | None) -> tuple[int, int]:
    """Messages that wait and that somebody holds, roughly; none where there is no queue."""
    if url is None:
        return 0, 0
    found = client.get_queue_attributes(
        QueueUrl=url,
        AttributeNames=[
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesDelayed",
            "ApproximateNumberOfMessagesNotVisible",
        ],
    )["Attributes"]
    waiting = int(found.get("ApproximateNumberOfMessages", 0))
    delayed = int(found.get("ApproximateNumberOfMessagesDelayed", 0))
    return waiting + delayed, int(found.get("ApproximateNumberOfMessagesNotVisible", 0))


class SqsLanes:
    """The queues `PREFIX-LANE` and `PREFIX-LANE-dead` of one account and region.

    A queue that is not there is made when it is first needed, if `create` allows it.
    """

    def __init__(self, client: SQSClient, prefix: str, *, create: bool, lease_s: int) -> None:
        """Raises UsageError for a prefix that cannot begin the name of a queue."""
        if not _PREFIX.fullmatch(prefix):
            raise UsageError(
                f"{prefix!r} cannot begin the names of queues. Write sqs://PREFIX with letters, "
                "digits, '-' and '_', 26 at most."
            )
        self._client = client
        self._prefix = prefix
        self._create = create
        self._lease_s = lease_s
        self._urls: dict[str, str] = {}
        self._lock = threading.Lock()

    def url(self, lane: str) -> str:
        """The queue of a Lane, made if need be. Raises QueueError."""
        check_lane(lane)
        if lane.endswith(_DEAD):
            raise QueueRefused(f"{lane!r}: on SQS the names that end with '{_DEAD}' are taken.")
        with self._lock:
            if lane not in self._urls:
                self._urls[lane] = self._find(self._name(lane)) or self._make(lane)
            return self._urls[lane]

    def dead_url(self, lane: str) -> str:
        """The queue that dead letters of a Lane go to, made if need be."""
        with self._lock:
            key = lane + _DEAD
            if key not in self._urls:
                self._urls[key] = self._find(self._name(key)) or self._make_dead(lane)
            return self._urls[key]

    def existing_urls(self, lane: str) -> tuple[str | None, str | None]:
        """The queue of a Lane and that of its dead letters, each None when it is not there."""
        return self.existing_url(lane), self.existing_url(lane, _DEAD)

    def existing_url(self, lane: str, ending: str = "") -> str | None:
        """The queue of a Lane, None when it is not there."""
        check_lane(lane)
        key = lane + ending
        with self._lock:
            if key not in self._urls and (url := self._find(self._name(key))):
                self._urls[key] = url
            return self._urls.get(key)

    def forget(self, lane: str) -> None:
        """Look the queue up again at its next use: somebody removed it."""
        with self._lock:
            self._urls.pop(lane, None)
            self._urls.pop(lane + _DEAD, None)

    @contextmanager
    def explained(self, doing: str, lane: str) -> Iterator[None]:
        """Turns errors of botocore into QueueError and QueueRefused."""
        try:
            yield
        except AWS_ERRORS as error:
            raise self._explain(error, doing, lane) from error

    def _explain(self, error: BotoCoreError | ClientError, doing: str, lane: str) -> QueueError:
        endpoint = self._client.meta.endpoint_url
        where = f"sqs://{self._prefix}" + ("" if is_aws(endpoint) else f" at {endpoint}")
        trouble = explain(error, where=where, doing=f"{doing} the queue {self._name(lane)!r}")
        more, retryable = _MEANINGS.get(_short(trouble.code), ("", trouble.retryable))
        return (QueueError if retryable else QueueRefused)(f"{trouble.message} {more}".strip())

    def _name(self, lane: str) -> str:
        return f"{self._prefix}-{lane}"

    def _find(self, name: str) -> str | None:
        lane = name.removeprefix(f"{self._prefix}-")
        with self.explained("looking for", lane):
            try:
                return self._client.get_queue_url(QueueName=name)["QueueUrl"]
            except ClientError as error:
                if is_gone(error):
                    return None
                raise

    def _make(self, lane: str) -> str:
        self._refuse_to_make(lane)
        dead = self._find(self._name(lane + _DEAD)) or self._make_dead(lane)
        with self.explained("making", lane):
            found = self._client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
            redrive = {
                "deadLetterTargetArn": found["Attributes"]["QueueArn"],
                "maxReceiveCount": str(_MAX_RECEIVES),
            }
            return self._make_queue(
                lane, VisibilityTimeout=str(self._lease_s), RedrivePolicy=json.dumps(redrive)
            )

    def _make_dead(self, lane: str) -> str:
        self._refuse_to_make(lane + _DEAD)
        with self.explained("making", lane + _DEAD):
            return self._make_queue(lane + _DEAD)

    def _make_queue(self, lane: str, **attributes: str) -> str:
        reply = self._client.create_queue(
            QueueName=self._name(lane),
            Attributes={"MessageRetentionPeriod": str(_RETENTION_S), **attributes},  # type: ignore[dict-item]
        )
        return reply["QueueUrl"]

    def _refuse_to_make(self, lane: str) -> None:
        if not self._create:
            raise QueueRefused(
                f"There is no queue {self._name(lane)!r}, and create=no forbids to make one. "
                "Make it (a standard queue, retention 14 days), or drop create=no from the URL."
            )
