"""Who a caller is, and what he may: API keys, looked up in the Ledger and believed for a moment."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sqlalchemy import Connection

from gristmill.api.key_text import KeyText, new_key_text, parse_key_text
from gristmill.api.limits import FailedLogins, RequestLimiter
from gristmill.ledger import quotas, tenants
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.tenants import LAST_USED_EVERY_S, ApiKey

#: How long a key is believed without another look, and so how soon its revocation is felt.
BELIEVED_S = 3.0
_MAX_BELIEVED = 10_000


class Scope(StrEnum):
    """What a key allows. `admin` allows all within its tenant, and to make and revoke its keys.

    `operator` alone sees and changes other tenants: their quotas, usage and audit log.
    """

    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    BATCHES_READ = "batches:read"
    BATCHES_WRITE = "batches:write"
    WEBHOOKS_READ = "webhooks:read"
    WEBHOOKS_WRITE = "webhooks:write"
    ADMIN = "admin"
    OPERATOR = "operator"


#: What a key may when nothing else is said.
DEFAULT_SCOPES: tuple[Scope, ...] = tuple(
    scope for scope in Scope if scope not in (Scope.ADMIN, Scope.OPERATOR)
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever showed a key. The tenant comes from here and from nowhere else."""

    tenant_id: str
    key_id: str
    scopes: frozenset[str]
    #: The quotas that its tenant has of its own.
    own_quotas: Mapping[str, int | None] = field(default_factory=dict)

    def may(self, scope: Scope) -> bool:
        is_admin = Scope.ADMIN in self.scopes and scope is not Scope.OPERATOR
        return scope in self.scopes or is_admin


@dataclass(frozen=True, slots=True)
class _Found:
    """A key of the Ledger and its tenant's own quotas, looked up at `at`."""

    key: ApiKey
    own_quotas: Mapping[str, int | None]
    at: float


#: Takes the id of a key that is about to be made.
Claim = Callable[[Connection, str], None]


def _no_claim(_conn: Connection, _key_id: str) -> None:
    return None


class Access:
    """Any thread may call any method."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        pepper: bytes,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._pepper = pepper
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._believed: dict[str, _Found] = {}  # by digest, or by id
        self.requests = RequestLimiter(ledger, clock)
        self.failed_logins = FailedLogins(clock)

    def find_believed(self, text: str) -> Caller | None:
        """Who shows this key, if it was looked up a moment ago; without a look at the Ledger."""
        shown = parse_key_text(text)
        if shown is None:
            return None
        with self._lock:
            found = self._believed.get(shown.digest(self._pepper))
        if found is None or self._monotonic() - found.at > BELIEVED_S:
            return None
        return self._caller(found)

    def find(self, text: str) -> Caller | None:
        """Who shows this key; None when it is no live key. Raises StoreError."""
        shown = parse_key_text(text)
        digest = shown.digest(self._pepper) if shown else ""
        with self._ledger.read() as conn:
            key = tenants.find_key(conn, shown.id) if shown else None
            own_quotas = quotas.find_own(conn, key.tenant_id) if key else {}
        # Compared in any case, so that an unknown id takes as long as a wrong secret.
        is_same = hmac.compare_digest(key.digest if key else "0" * 64, digest)
        if key is None or not is_same:
            return None
        found = _Found(key, own_quotas, self._monotonic())
        caller = self._caller(found)
        if caller is not None:
            self._touch(key)
            self._believe(digest, found)
        return caller

    def find_by_id(self, key_id: str) -> Caller | None:
        """Whose key this is, for a session that it has begun; None when it is no live key.

        Raises StoreError.
        """
        with self._lock:
            found = self._believed.get(key_id)
        if found is None or self._monotonic() - found.at > BELIEVED_S:
            with self._ledger.read() as conn:
                key = tenants.find_key(conn, key_id)
                own_quotas = quotas.find_own(conn, key.tenant_id) if key else {}
            if key is None:
                return None
            found = _Found(key, own_quotas, self._monotonic())
            self._believe(key_id, found)
            if key.is_live(self._clock()):
                self._touch(key)
        return self._caller(found)

    def secret_for(self, purpose: str) -> bytes:
        """For signing something that is no key; another one for each purpose."""
        return hmac.digest(self._pepper, f"gristmill {purpose}".encode(), "sha256")

    def make_key(
        self,
        tenant_id: str,
        *,
        name: str,
        scopes: tuple[str, ...] = DEFAULT_SCOPES,
        expires_at: int | None = None,
        claim: Claim = _no_claim,
    ) -> tuple[KeyText, ApiKey]:
        """A new key of a tenant, which is made if need be. The text is nowhere kept.

        There is no key when `claim` raises, which it is asked in the same transaction.
        """
        text, now = new_key_text(), int(self._clock())
        key = ApiKey(
            id=text.id,
            tenant_id=tenant_id,
            name=name,
            digest=text.digest(self._pepper),
            scopes=scopes,
            created_at=now,
            expires_at=expires_at,
        )
        with self._ledger.write() as conn:
            claim(conn, key.id)
            tenants.ensure(conn, tenant_id, now=now)
            tenants.add_key(conn, key)
        return text, key

    def replace_key(
        self,
        key: ApiKey,
        *,
        overlap_s: int,
        expires_at: int | None,
        claim: Claim = _no_claim,
    ) -> tuple[KeyText, ApiKey]:
        """A new key in the place of a live one, which ends after `overlap_s`.

        Without `expires_at` the new key lives as long as the old one was made for. `claim` is as
        for `make_key`.
        """
        text, now = new_key_text(), int(self._clock())
        if expires_at is None and key.expires_at is not None:
            expires_at = now + key.expires_at - key.created_at
        new = replace(
            key,
            id=text.id,
            digest=text.digest(self._pepper),
            created_at=now,
            expires_at=expires_at,
            last_used_at=None,
        )
        with self._ledger.write() as conn:
            claim(conn, new.id)
            tenants.add_key(conn, new)
            tenants.end_key(conn, key.tenant_id, key.id, expires_at=now + overlap_s)
        return text, new

    def _caller(self, found: _Found) -> Caller | None:
        key = found.key
        if not key.is_live(self._clock()):
            return None
        return Caller(key.tenant_id, key.id, frozenset(key.scopes), found.own_quotas)

    def _touch(self, key: ApiKey) -> None:
        now = int(self._clock())
        if key.last_used_at is None or key.last_used_at < now - LAST_USED_EVERY_S:
            with self._ledger.write() as conn:
                tenants.touch_key(conn, key, now=now)

    def _believe(self, digest: str, found: _Found) -> None:
        with self._lock:
            if len(self._believed) >= _MAX_BELIEVED:
                self._believed.clear()
            self._believed[digest] = found
