"""What a message of SQS looks like: the body as it is, its size for `receive` in attributes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gristmill.errors import QueueRefused

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import (
        MessageAttributeValueTypeDef,
        MessageTypeDef,
        SendMessageRequestTypeDef,
    )

SIZES = ["rows", "tokens"]
_MAX_REASON_CHARS = 1000
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def new_message(
    queue_url: str, body: bytes, *, num_rows: int, num_tokens: int, group: str | None
) -> SendMessageRequestTypeDef:
    """`group` is what a standard queue is fair between. Raises QueueRefused."""
    request: SendMessageRequestTypeDef = {
        "QueueUrl": queue_url,
        "MessageBody": _text(body),
        "MessageAttributes": {"rows": _number(num_rows), "tokens": _number(num_tokens)},
    }
    if group is not None:
        request["MessageGroupId"] = group
    return request


def new_dead_letter(queue_url: str, body: bytes, reason: str) -> SendMessageRequestTypeDef:
    why = "".join(c for c in reason if c.isprintable())[:_MAX_REASON_CHARS] or "not said"
    return {
        "QueueUrl": queue_url,
        "MessageBody": _text(body),
        "MessageAttributes": {"reason": {"DataType": "String", "StringValue": why}},
    }


def sizes_of(message: MessageTypeDef) -> tuple[int, int]:
    """Rows and tokens; one row of unknown length for a message that does not say."""
    return _attribute(message, "rows", 1), _attribute(message, "tokens", 0)


def _attribute(message: MessageTypeDef, name: str, default: int) -> int:
    attributes = message.get("MessageAttributes", {})
    text = attributes[name].get("StringValue", "") if name in attributes else ""
    return int(text) if text.isdecimal() else default


def _number(value: int) -> MessageAttributeValueTypeDef:
    return {"DataType": "Number", "StringValue": str(value)}


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise QueueRefused(f"A message is UTF-8 text, and {body[:40]!r} is not.") from error
    if illegal := _ILLEGAL.search(text):
        raise QueueRefused(
            f"SQS takes only characters that XML allows, and {illegal[0]!r} in {body[:40]!r} is "
            "none of them."
        )
    return text
