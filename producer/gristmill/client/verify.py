"""Checks that a webhook delivery is genuine: Standard Webhooks, HMAC-SHA256 over id, time, body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping, Sequence

from gristmill.client.errors import InvalidWebhookSignatureError
from gristmill.client.more_objects import WebhookEvent
from gristmill.errors import UsageError

#: How old a delivery may be, and how far its clock may be ahead.
TOLERANCE_S = 300


def verify_webhook(
    body: bytes | str,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance: float = TOLERANCE_S,
    now: float | None = None,
) -> WebhookEvent:
    """The event of a delivery that was signed with `secret`, or one of them while it is rotated.

    `body` is the raw body, byte for byte; `headers` may be of any web framework. The same event
    may come more than once: its `id` tells. Raises InvalidWebhookSignatureError.
    """
    raw = body.encode() if isinstance(body, str) else body
    named = {str(name).lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp = named["webhook-id"], named["webhook-timestamp"]
        shown = named["webhook-signature"]
    except KeyError as error:
        raise InvalidWebhookSignatureError(
            f"The delivery has no header {error}. Give all headers of the request."
        ) from error
    age_s = (time.time() if now is None else now) - _seconds(timestamp)
    if abs(age_s) > tolerance:
        words = "old" if age_s > 0 else "ahead of this clock"
        raise InvalidWebhookSignatureError(
            f"The delivery is {abs(age_s):.0f} s {words}; at most {tolerance:g} s are allowed."
        )
    secrets = [secret] if isinstance(secret, str) else list(secret)
    signed = f"{message_id}.{timestamp}.".encode() + raw
    expected = [
        base64.b64encode(hmac.new(_key_of(one), signed, hashlib.sha256).digest()).decode()
        for one in secrets
    ]
    given = [one.removeprefix("v1,") for one in shown.split()]
    # All are compared, so that the time says nothing.
    matches = [
        hmac.compare_digest(one.encode(), wanted.encode()) for one in given for wanted in expected
    ]
    if not any(matches):
        raise InvalidWebhookSignatureError(
            "No signature of the delivery fits the secret. Either the body is not the raw one, or "
            "the secret is another endpoint's, or somebody else has sent it."
        )
    return WebhookEvent.model_validate(json.loads(raw))


def secret_of(secret: str | None) -> str:
    """GRISTMILL_WEBHOOK_SECRET where none is given."""
    return secret if secret is not None else os.environ.get("GRISTMILL_WEBHOOK_SECRET", "")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidWebhookSignatureError(f"webhook-timestamp is {text[:40]!r}.") from error


def _key_of(secret: str) -> bytes:
    if not secret:
        raise UsageError("The secret is empty. Give the `whsec_…` of the webhook endpoint.")
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise UsageError("The secret is damaged: behind `whsec_` stands no base64.") from error
