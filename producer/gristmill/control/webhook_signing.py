"""Signs deliveries as Standard Webhooks 1.0.0 wants it, and makes the secrets for that."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime

from standardwebhooks import Webhook

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64


def new_secret() -> str:
    """`whsec_` and the base64 of 32 random bytes."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_secret(text: str) -> str:
    """The secret itself. Raises ValueError for what receivers could not use."""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise ValueError(
            f"a secret is {_PREFIX} and the base64 of {_MIN_BYTES} to {_MAX_BYTES} random bytes"
        )
    return text


def secret_hint(secret: str) -> str:
    """Enough to tell two secrets apart."""
    return f"{_PREFIX}...{secret[-4:]}"


def signed_headers(
    event_id: str, body: str, signing_secrets: Iterable[str], *, now: float
) -> dict[str, str]:
    """The headers of an attempt at the time `now`, signed with each of the secrets."""
    sent_at = datetime.fromtimestamp(int(now), UTC)
    signatures = (Webhook(secret).sign(event_id, sent_at, body) for secret in signing_secrets)
    return {
        "content-type": "application/json",
        "user-agent": "Gristmill-Webhooks/1",
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": " ".join(signatures),
    }
