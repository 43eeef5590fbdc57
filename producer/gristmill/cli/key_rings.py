"""Where `gristmill keys` works: right in a ledger, or over the API with a key that may."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gristmill.cli.ledger_door import opened_ledger
from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.client import Client
    from gristmill.client.objects import ApiKey
    from gristmill.ledger.ledger import Ledger
    from gristmill.ledger.tenants import ApiKey as LedgerKey


class KeyRing(Protocol):
    """Keys are named by their id, or by the whole key. All raise UsageError or APIError."""

    def create(
        self, *, tenant: str | None, name: str, scopes: Sequence[str], lifetime_s: float | None
    ) -> ApiKey:
        """With its text in `key`. No scopes are those that a key has by default."""

    def list(self, tenant: str | None) -> Iterator[ApiKey]:
        """The newest first."""

    def rotate(self, key: str, *, overlap_s: int) -> ApiKey:
        """The new key, with its text in `key`."""

    def revoke(self, key: str) -> ApiKey: ...


@contextmanager
def opened_ring(
    data_dir: Path | None, ledger_url: str | None, base_url: str | None, profile: str | None
) -> Iterator[KeyRing]:
    """What was named; else the service of the environment or the profile, as for other commands."""
    is_ledger_named = data_dir is not None or (
        ledger_url is not None and ledger_url != os.environ.get("GRISTMILL_LEDGER")
    )
    is_service_named = base_url is not None or profile is not None
    if is_ledger_named and is_service_named:
        raise UsageError(
            "Say one of them: --data-dir or --ledger for the ledger itself, --base-url or "
            "--profile for the API."
        )
    if not is_service_named and (is_ledger_named or ledger_url is not None):
        with opened_ledger(data_dir, ledger_url) as (ledger, pepper):
            yield LedgerRing(ledger, pepper)
        return
    from gristmill.client import Client
    from gristmill.client.options import find_address

    if not find_address(base_url=base_url, profile=profile).api_key.value:
        raise UsageError(
            "Say which: --data-dir DIR of `gristmill up`, --ledger URL of a fleet, or with a key "
            "that has the scope `admin` --base-url URL or --profile NAME of a service."
        )
    with Client(base_url=base_url, profile=profile) as client:
        yield ServiceRing(client)


class ServiceRing:
    """Over the API: the keys of one's own tenant."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self, *, tenant: str | None, name: str, scopes: Sequence[str], lifetime_s: float | None
    ) -> ApiKey:
        self._check_tenant(tenant)
        expires_at = None if lifetime_s is None else int(time.time() + lifetime_s)
        return self._client.keys.create(
            name=name, scopes=list(scopes) or None, expires_at=expires_at
        )

    def list(self, tenant: str | None) -> Iterator[ApiKey]:
        self._check_tenant(tenant)
        return iter(self._client.keys.list(limit=100))

    def rotate(self, key: str, *, overlap_s: int) -> ApiKey:
        return self._client.keys.rotate(_id_of(key), overlap_s=overlap_s)

    def revoke(self, key: str) -> ApiKey:
        return self._client.keys.revoke(_id_of(key))

    def _check_tenant(self, tenant: str | None) -> None:
        if tenant is not None:
            raise UsageError(
                "Over the API a key sees and makes keys of its own tenant. For those of "
                f"{tenant[:80]!r} use one of its keys, or --data-dir or --ledger."
            )


class LedgerRing:
    """As an operator: the keys of all tenants. What it changes is in the audit log."""

    def __init__(self, ledger: Ledger, pepper: bytes) -> None:
        from gristmill.api.access import Access

        self._ledger = ledger
        self._access = Access(ledger, pepper=pepper)

    def create(
        self, *, tenant: str | None, name: str, scopes: Sequence[str], lifetime_s: float | None
    ) -> ApiKey:
        from gristmill.api.access import DEFAULT_SCOPES, Scope

        wrong = set(scopes) - set(Scope)
        if wrong:
            raise UsageError(f"{min(wrong)!r} is no scope. There are: {', '.join(Scope)}.")
        tenant = "default" if tenant is None else tenant
        _check_tenant(tenant)
        text, key = self._access.make_key(
            tenant,
            name=name,
            scopes=tuple(dict.fromkeys(scopes or DEFAULT_SCOPES)),
            expires_at=None if lifetime_s is None else int(time.time() + lifetime_s),
        )
        self._record(key, "keys create")
        return _shown(key, text=str(text))

    def list(self, tenant: str | None) -> Iterator[ApiKey]:
        from gristmill.ledger import tenants

        after_id: str | None = None
        has_more = True
        while has_more:
            with self._ledger.read() as conn:
                page = tenants.list_keys(conn, tenant, limit=100, after_id=after_id)
            assert page is not None, "keys are never deleted"
            for key in page.items:
                after_id = key.id
                yield _shown(key)
            has_more = page.has_more

    def rotate(self, key: str, *, overlap_s: int) -> ApiKey:
        found = self._find(key)
        if not found.is_live(time.time()):
            raise UsageError(
                f"The key {found.id} has ended. `gristmill keys create` makes a new one."
            )
        text, new = self._access.replace_key(found, overlap_s=overlap_s, expires_at=None)
        self._record(found, "keys rotate", made=new.id)
        return _shown(new, text=str(text))

    def revoke(self, key: str) -> ApiKey:
        from gristmill.ledger import tenants

        found = self._find(key)
        with self._ledger.write() as conn:
            tenants.revoke_key(conn, found.tenant_id, found.id, now=int(time.time()))
        self._record(found, "keys revoke")
        return _shown(found)

    def _find(self, key: str) -> LedgerKey:
        from gristmill.ledger import tenants

        with self._ledger.read() as conn:
            found = tenants.find_key(conn, _id_of(key))
        if found is None:
            raise UsageError(f"There is no key {key[:20]!r}. `gristmill keys list` shows all.")
        return found

    def _record(self, key: LedgerKey, command: str, **details: str) -> None:
        from gristmill.cli.audited import record_command

        record_command(self._ledger, key.tenant_id, command, key.id, **details)


def _shown(key: LedgerKey, *, text: str | None = None) -> ApiKey:
    from gristmill.client.objects import ApiKey

    fields = ("id", "name", "created_at", "expires_at", "revoked_at", "last_used_at")
    found = {name: getattr(key, name) for name in fields}
    scopes = list(key.scopes)
    return ApiKey.model_validate({**found, "scopes": scopes, "tenant": key.tenant_id, "key": text})


def _id_of(key: str) -> str:
    return key.removeprefix("gm_").partition("_")[0]


def _check_tenant(tenant: str) -> None:
    """It becomes a part of each key in the store."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tenant):
        raise UsageError(
            f"{tenant[:80]!r} is no name of a tenant: write 1 to 64 letters, digits, '_' and '-'."
        )
