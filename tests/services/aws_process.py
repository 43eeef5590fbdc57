"""Runs moto's server with a clock that can be put forward: `aws_process.py PORT FILE`.

FILE holds the seconds by which the clock of SQS is ahead, and is read again at each look. The 12
hours for which SQS hides a message count from its newest receive, as on AWS; moto has them from
the send.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

# Roles are given policies that AWS itself has; they are read when IAM is used first.
os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"

import moto.core.utils
import moto.server
from moto.core.responses import BaseResponse
from moto.core.utils import unix_time_millis
from moto.sqs.models import Message, SQSBackend


def count_twelve_hours_from_the_receive() -> None:
    mark_received, change = Message.mark_received, SQSBackend.change_message_visibility

    def mark_and_note(message: Any, *args: Any, **kwargs: Any) -> None:
        mark_received(message, *args, **kwargs)
        message.received_at_ms = unix_time_millis()

    def change_by_receive(
        backend: Any, queue_name: str, receipt_handle: str, visibility_timeout: int
    ) -> None:
        messages = backend.get_queue(queue_name)._messages
        held = [message for message in messages if message.had_receipt_handle(receipt_handle)]
        sent = [message.sent_timestamp for message in held]
        for message in held:
            message.sent_timestamp = message.received_at_ms
        try:
            change(backend, queue_name, receipt_handle, visibility_timeout)
        finally:
            for message, at_ms in zip(held, sent, strict=True):
                message.sent_timestamp = at_ms

    Message.mark_received = mark_and_note  # type: ignore[method-assign]
    SQSBackend.change_message_visibility = change_by_receive  # type: ignore[method-assign]


def say_that_nothing_has_tags() -> None:
    """Of services where moto knows no better: Terraform asks again and again while it gets 500."""
    BaseResponse.list_tags_for_resource = lambda self: '{"Tags": {}}'  # type: ignore[attr-defined]


def main() -> None:
    port, clock = sys.argv[1], Path(sys.argv[2])
    true_time = moto.core.utils.utcnow

    def utcnow() -> datetime:
        return true_time() + timedelta(seconds=float(clock.read_text() or 0))

    moto.core.utils.utcnow = utcnow
    count_twelve_hours_from_the_receive()
    say_that_nothing_has_tags()
    moto.server.main(["-H", "127.0.0.1", "-p", port])


if __name__ == "__main__":
    main()
