"""Keeps the signing secrets of webhooks unreadable in the Ledger: whoever copies it signs nothing.

A secret is sealed under a key of the settings, with its name in front: `sealed:{key id}:{token}`,
the token being one of Fernet (AES-128-CBC and HMAC-SHA256, of the package `cryptography`). Versions
before this one kept secrets as they are (`whsec_…`); those are read too, and sealed at the next
start of an API process.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gristmill.control.webhook_signing import secret_hint
from gristmill.errors import GristmillError, UsageError
from gristmill.ledger import webhook_secrets
from gristmill.ledger.ledger import Ledger
from gristmill.settings import Settings, items_of

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

log = logging.getLogger(__name__)

_SEALED = "sealed:"
_PURPOSE = b"gristmill webhook secrets 1"
_PAGE = 200


class SecretUnreadable(GristmillError):
    """A secret was sealed under a key that this process does not have."""


class Vault:
    """Seals under the first key, opens under any. Without a key it opens what was never sealed."""

    def __init__(self, keys: Sequence[str]) -> None:
        derived = [hmac.new(key.encode(), _PURPOSE, hashlib.sha256).digest() for key in keys]
        self._keys = {hashlib.sha256(key).hexdigest()[:8]: key for key in derived}

    @classmethod
    def of(cls, settings: Settings) -> Vault:
        if settings.webhook_secret_keys is not None:
            return cls(items_of(settings.webhook_secret_keys.get_secret_value()))
        pepper = settings.key_pepper
        return cls([] if pepper is None else [pepper.get_secret_value()])

    @property
    def has_key(self) -> bool:
        """Without one nothing can be sealed, and what is sealed cannot be opened."""
        return bool(self._keys)

    def seal(self, secret: str) -> str:
        """As it lies in the Ledger. Raises UsageError without a key."""
        if not self._keys:
            raise UsageError(
                "There is no key to seal the secrets of webhooks under. Set GRISTMILL_KEY_PEPPER, "
                "or GRISTMILL_WEBHOOK_SECRET_KEYS, the same for the API and for control."
            )
        key_id, key = next(iter(self._keys.items()))
        return f"{_SEALED}{key_id}:{_fernet(key).encrypt(secret.encode()).decode()}"

    def open(self, text: str) -> str:
        """The secret that a row of the Ledger holds. Raises SecretUnreadable."""
        from cryptography.fernet import InvalidToken

        if not text.startswith(_SEALED):
            return text
        key_id, _, token = text.removeprefix(_SEALED).partition(":")
        try:
            return _fernet(self._keys[key_id]).decrypt(token).decode()
        except (KeyError, InvalidToken) as error:
            known = ", ".join(self._keys) or "none"
            raise SecretUnreadable(
                f"The secret of a webhook was sealed under the key {key_id[:8]!a}, and this "
                f"process has {known}. Give it the GRISTMILL_KEY_PEPPER or the "
                "GRISTMILL_WEBHOOK_SECRET_KEYS of the API."
            ) from error

    def hint(self, text: str) -> str:
        """Enough to tell two secrets apart; that is not worth an error."""
        try:
            return secret_hint(self.open(text))
        except SecretUnreadable:
            return "unreadable: rotate it"

    def is_current(self, text: str) -> bool:
        """Whether it is sealed under the key that seals now. True for none at all."""
        current = next(iter(self._keys), "")
        return not text or text.startswith(f"{_SEALED}{current}:")


def seal_all(ledger: Ledger, vault: Vault) -> int:
    """Seal what lies open or under an older key, so that this key may go; how many endpoints.

    Harmless beside others. What cannot be opened stays as it is. Raises StoreError, and UsageError
    for a vault without a key.
    """
    num_sealed, after_id = 0, ""
    while True:
        with ledger.read() as conn:
            page = webhook_secrets.list_page(conn, after_id=after_id, limit=_PAGE)
        for held in page:
            after_id = held.endpoint_id
            if vault.is_current(held.secret) and vault.is_current(held.old_secret or ""):
                continue
            try:
                old = held.old_secret and vault.seal(vault.open(held.old_secret))
                sealed = held.with_secrets(vault.seal(vault.open(held.secret)), old)
            except SecretUnreadable as error:
                log.warning("webhook secret left endpoint=%s reason=%s", held.endpoint_id, error)
                continue
            with ledger.write() as conn:
                num_sealed += webhook_secrets.replace(conn, held, sealed)
        if len(page) < _PAGE:
            break
    if num_sealed:
        log.info("webhook secrets sealed num=%d", num_sealed)
    return num_sealed


def _fernet(key: bytes) -> Fernet:
    from cryptography.fernet import Fernet

    return Fernet(base64.urlsafe_b64encode(key))
