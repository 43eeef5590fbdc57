"""Queries about requests with an `Idempotency-Key`: what the first one with a key has made."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from gristmill.ledger.oldest import remove_oldest
from gristmill.ledger.schema_idempotency import idempotency_keys

#: A key may be used for something else afterwards.
KEPT_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Made:
    """`request_digest` is of all that was asked for, in hex."""

    request_digest: str
    object_id: str


def find(
    conn: Connection, tenant_id: str, key: str, *, now: int, within_s: int = KEPT_S
) -> Made | None:
    """What the first request with this key has made, if that is less than `within_s` ago."""
    assert within_s <= KEPT_S, "what is older may be gone"
    table = idempotency_keys.c
    query = select(table.request_digest, table.object_id).where(
        table.tenant_id == tenant_id, table.key == key, table.created_at > now - within_s
    )
    row = conn.execute(query).one_or_none()
    return None if row is None else Made(*row)


def keep(conn: Connection, tenant_id: str, key: str, made: Made, *, now: int) -> Made:
    """What counts from now on: this, unless another request with this key was faster."""
    table = idempotency_keys.c
    is_this = (table.tenant_id == tenant_id, table.key == key)
    conn.execute(delete(idempotency_keys).where(*is_this, table.created_at <= now - KEPT_S))
    with suppress(IntegrityError), conn.begin_nested():
        conn.execute(
            insert(idempotency_keys).values(
                tenant_id=tenant_id,
                key=key,
                request_digest=made.request_digest,
                object_id=made.object_id,
                created_at=now,
            )
        )
    first = find(conn, tenant_id, key, now=now)
    assert first is not None, "it was just written, here or elsewhere"
    return first


def keep_newest(conn: Connection, tenant_id: str, key: str, made: Made, *, now: int) -> None:
    """This counts, whatever another request with this key has made."""
    table = idempotency_keys.c
    conn.execute(delete(idempotency_keys).where(table.tenant_id == tenant_id, table.key == key))
    keep(conn, tenant_id, key, made, now=now)


def remove_older(conn: Connection, *, now: int, limit: int) -> int:
    """Of all tenants, those that are kept no longer; how many."""
    age, before = idempotency_keys.c.created_at, now - KEPT_S + 1
    return remove_oldest(conn, idempotency_keys, age, before=before, limit=limit)
