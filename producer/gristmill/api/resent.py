"""Requests that the official client sends again by itself: it counts its tries, and that is all."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

#: A request that is sent again blindly within this time makes nothing new.
RESEND_WINDOW_S = 600

RetryCount = Annotated[str | None, Header(alias="x-stainless-retry-count")]


def is_resent(retry_count: str | None) -> bool:
    """Whether an earlier try of this request may have arrived."""
    return bool(retry_count and retry_count.isdigit() and retry_count.strip("0"))
