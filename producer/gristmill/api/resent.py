"""Requests that are sent again: by their sender's key, or as the official client does by itself."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from sqlalchemy import Connection

from gristmill.api.failures import ApiError, refused
from gristmill.ledger import idempotency
from gristmill.ledger.idempotency import Made

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


@dataclass(frozen=True, slots=True)
class Named:
    """A request with an `Idempotency-Key`; `digest`, in hex, is of all that it asks for."""

    name: str
    digest: str


def name_of(kind: str, key: str) -> str:
    """What a key is kept as. No key has a line break, so those of two kinds never meet."""
    return f"{kind}\n{key}"


def named(kind: str, key: str | None, asked: object) -> Named | None:
    """None for a request without a key. `asked` is what JSON can hold. Raises ApiError."""
    check_key(key)
    if key is None:
        return None
    return Named(name_of(kind, key), _digest_of(asked))


def named_by_itself(kind: str, asked: object) -> Named:
    """A request without a key; it meets none that has one."""
    digest = _digest_of(asked)
    return Named(name_of(kind, f"\n{digest}"), digest)


def _digest_of(asked: object) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def first_made(
    conn: Connection, tenant_id: str, request: Named | None, object_id: str, *, now: int
) -> str:
    """What counts from now on: this object, or the one that the first such request has made.

    Raises ApiError when that request asked for something else.
    """
    if request is None:
        return object_id
    made = Made(request.digest, object_id)
    first = idempotency.keep(conn, tenant_id, request.name, made, now=now)
    if first.request_digest != request.digest:
        raise key_reused(first.object_id)
    return first.object_id


def made_before(
    conn: Connection, tenant_id: str, request: Named, retry_count: str | None, *, now: int
) -> str | None:
    """What an earlier try of a request without a key has made, of late; None for a first try."""
    if not is_resent(retry_count):
        return None
    made = idempotency.find(conn, tenant_id, request.name, now=now, within_s=RESEND_WINDOW_S)
    return None if made is None else made.object_id


def keep_made(
    conn: Connection, tenant_id: str, request: Named, object_id: str, *, now: int
) -> None:
    """What a request without a key has made, should its next try come."""
    made = Made(request.digest, object_id)
    idempotency.keep_newest(conn, tenant_id, request.name, made, now=now)
