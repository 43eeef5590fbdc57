"""Queries about tenants and their API keys. Of a key only a digest is kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, RowMapping, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema import api_keys, tenants

#: `last_used_at` is written at most so often.
LAST_USED_EVERY_S = 60


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key. `id` is its public part."""

    id: str
    tenant_id: str
    name: str
    digest: str
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None

    def is_live(self, now: float) -> bool:
        has_expired = self.expires_at is not None and self.expires_at <= now
        return self.revoked_at is None and not has_expired


def ensure(conn: Connection, tenant_id: str, *, now: int) -> None:
    """Make the tenant, unless it is there."""
    found = conn.execute(select(tenants).where(tenants.c.tenant_id == tenant_id)).first()
    if found is None:
        # Somebody else may be a moment faster.
        with suppress(IntegrityError), conn.begin_nested():
            conn.execute(insert(tenants).values(tenant_id=tenant_id, created_at=now))


def any_key(conn: Connection) -> bool:
    """Whether there is a key of any tenant."""
    return conn.execute(select(api_keys.c.id).limit(1)).first() is not None


def add_key(conn: Connection, key: ApiKey) -> None:
    conn.execute(insert(api_keys).values(**asdict(key) | {"scopes": list(key.scopes)}))


def find_key(conn: Connection, key_id: str) -> ApiKey | None:
    """By the public part of a key that a caller has shown: before anybody knows the tenant."""
    row = conn.execute(select(api_keys).where(api_keys.c.id == key_id)).mappings().one_or_none()
    return None if row is None else _api_key(row)


def get_key(conn: Connection, tenant_id: str, key_id: str) -> ApiKey | None:
    """A key of the tenant."""
    key = find_key(conn, key_id)
    return key if key is not None and key.tenant_id == tenant_id else None


def list_keys(
    conn: Connection, tenant_id: str | None, *, limit: int, after_id: str | None = None
) -> Page[ApiKey] | None:
    """Keys, the newest first, of one tenant or, for an operator, of all (None)."""
    of = () if tenant_id is None else (api_keys.c.tenant_id == tenant_id,)
    return read_page(conn, api_keys, _api_key, of=of, limit=limit, after_id=after_id)


def revoke_key(conn: Connection, tenant_id: str, key_id: str, *, now: int) -> bool:
    """False when the tenant has no such key. A key that was revoked before stays so."""
    of_tenant = (api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id)
    conn.execute(
        update(api_keys).where(*of_tenant, api_keys.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    return conn.execute(select(api_keys.c.id).where(*of_tenant)).first() is not None


def end_key(conn: Connection, tenant_id: str, key_id: str, *, expires_at: int) -> None:
    """The key ends then, unless it ends sooner."""
    is_later = or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > expires_at)
    statement = update(api_keys).where(
        api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id, is_later
    )
    conn.execute(statement.values(expires_at=expires_at))


def touch_key(conn: Connection, key: ApiKey, *, now: int) -> None:
    """The key was used just now."""
    is_older = or_(
        api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < now - LAST_USED_EVERY_S
    )
    statement = update(api_keys).where(
        api_keys.c.tenant_id == key.tenant_id, api_keys.c.id == key.id, is_older
    )
    conn.execute(statement.values(last_used_at=now))


def _api_key(row: RowMapping) -> ApiKey:
    return ApiKey(**dict(row) | {"scopes": tuple(row["scopes"])})


def all_tenants(conn: Connection) -> Sequence[str]:
    """The ids of all tenants, for an operator."""
    return list(conn.scalars(select(tenants.c.tenant_id).order_by(tenants.c.tenant_id)))
