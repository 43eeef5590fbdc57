"""Requests that are sent again: by their sender's key, or as the official client does by itself."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header

from gristmill.api.failures import ApiError, refused

#: A request that is sent again blindly within this time makes nothing new.
RESEND_WINDOW_S = 600
_KEY = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,254}")

#: The official client sends no key of its own, but counts its tries.
RetryCount = Annotated[str | None, Header(alias="x-stainless-retry-count")]
IdempotencyKey = Annotated[
    str | None,
    Header(alias="idempotency-key", description="The same key makes nothing twice."),
]


def is_resent(retry_count: str | None) -> bool:
    """Whether an earlier try of this request may have arrived."""
    return bool(retry_count and retry_count.isdigit() and retry_count.strip("0"))


def check_key(key: str | None) -> None:
    """Raises ApiError for what is no key; None is that there is none."""
    if key is not None and not _KEY.fullmatch(key):
        raise refused(
            "An Idempotency-Key is 1 to 255 printable ASCII characters.", param="Idempotency-Key"
        )


def key_reused(object_id: str, *, why: str = "from another request") -> ApiError:
    """What this key has made, and why that is no answer to this request."""
    return refused(
        f"This Idempotency-Key has created {object_id} {why}. Use a new one.",
        param="Idempotency-Key",
        code="idempotency_key_reused",
    )
