"""API keys as text: `gm_{id}_{secret}{checksum}`. Of the secret only a digest is ever kept.

The prefix and the checksum let scanners for leaked secrets find a key without asking anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIX = "gm_"
#: 32 characters of 62 are 190 bits.
_SECRET_CHARS, _CHECKSUM_CHARS = 32, 6
_KEY = re.compile(r"gm_([0-9a-f]{12})_([0-9A-Za-z]{32})([0-9A-Za-z]{6})")


@dataclass(frozen=True, slots=True)
class KeyText:
    """A key as its owner has it. `id` is public."""

    id: str
    secret: str = field(repr=False)

    def __str__(self) -> str:
        head = f"{_PREFIX}{self.id}_{self.secret}"
        return head + _checksum(head)

    def digest(self, pepper: bytes) -> str:
        """HMAC-SHA256 in hex. A secret this long needs no slow hash."""
        return hmac.new(pepper, self.secret.encode(), hashlib.sha256).hexdigest()


def new_key_text() -> KeyText:
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_CHARS))
    return KeyText(secrets.token_hex(6), secret)


def parse_key_text(text: str) -> KeyText | None:
    """None for what cannot be a key: a wrong form, or a checksum that does not fit."""
    match = _KEY.fullmatch(text)
    if match is None or _checksum(text[:-_CHECKSUM_CHARS]) != match[3]:
        return None
    return KeyText(match[1], match[2])


def _checksum(text: str) -> str:
    """CRC-32 in base 62, padded to six characters."""
    rest, digits = zlib.crc32(text.encode()), ""
    for _ in range(_CHECKSUM_CHARS):
        rest, digit = divmod(rest, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
