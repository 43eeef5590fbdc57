"""What a browser holds instead of an API key: a signed note of which key was shown, and when.

The note names a key and lets nobody use it elsewhere: the API takes keys only. Each request looks
the key up, so that a session ends with it, and whether the session was logged out of: a copy of the
note is of no use then.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace

#: A session that nothing is heard of for so long is over.
IDLE_S = 3600
#: And each one after so long.
LONGEST_S = 12 * 3600
#: The note is written anew when it is so old.
_RENEW_AFTER_S = 300
_NOTE = re.compile(
    r"v1\.([0-9a-f]{12})\.([0-9]{1,12})\.([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Session:
    """`key_id` is the public part of the key; times are Unix seconds."""

    key_id: str
    began_at: int
    renewed_at: int
    nonce: str

    @property
    def ends_at(self) -> int:
        return min(self.renewed_at + IDLE_S, self.longest_until)

    @property
    def longest_until(self) -> int:
        """No note of this session, however often renewed, is good for longer."""
        return self.began_at + LONGEST_S


class Sessions:
    """Signs notes and reads them. Every API process with the same pepper reads those of others."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def begin(self, key_id: str, *, now: int) -> Session:
        return Session(key_id, now, now, secrets.token_hex(16))

    def renewed(self, session: Session, *, now: int) -> Session | None:
        """The session with more time; None while it has enough."""
        if now - session.renewed_at < _RENEW_AFTER_S:
            return None
        return replace(session, renewed_at=now)

    def write(self, session: Session) -> str:
        head = f"v1.{session.key_id}.{session.began_at}.{session.renewed_at}.{session.nonce}"
        return f"{head}.{self._sign('session', head)}"

    def read(self, note: str, *, now: int) -> Session | None:
        """None for what was not written here, and for what is over."""
        match = _NOTE.fullmatch(note)
        if match is None:
            return None
        head, _, signature = note.rpartition(".")
        if not hmac.compare_digest(signature, self._sign("session", head)):
            return None
        session = Session(match[1], int(match[2]), int(match[3]), match[4])
        # A minute, for the clocks of other processes.
        is_now = session.renewed_at - 60 <= now < session.ends_at
        return session if is_now else None

    def form_token(self, session: Session) -> str:
        """What every form of this session carries, and nobody else can know."""
        return self._sign("form", session.nonce)

    def is_of_form(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(self.form_token(session).encode(), token.encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()
