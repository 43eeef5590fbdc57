"""Reaches a Redis or Valkey server, sees whether it can be trusted, and words its errors.

Knows nothing of Lanes and Leases.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry

from gristmill.errors import QueueError, QueueRefused, UsageError

log = logging.getLogger(__name__)

_OLDEST_VERSION = (6, 2)
_OWN_PARAMETERS = ("prefix", "timeout_s", "eviction")
#: Passed on as they are; see redis-py for what they mean.
_TLS_PARAMETERS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_KEY_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")

#: What replies mean that are no errors of ours, by the word that they hold; the way out.
_MEANINGS = {
    "OOM": "The server is full: raise maxmemory, or let workers drain it.",
    "READONLY": "It is a replica: give the address of the primary, or wait for the failover.",
    "LOADING": "It has just started and is still reading its files; it will pass.",
    "BUSY": "It is busy with somebody's script; it may pass.",
    "MASTERDOWN": "The primary is away; it may pass.",
    "NOREPLICAS": "Too few replicas are connected; it may pass.",
    "MISCONF": "It cannot save to its disk: see the server's log.",
    "CLUSTERDOWN": "The cluster has no quorum; it may pass.",
}
#: Replies that the same call would get again.
_REFUSALS = {
    "NOPERM": "The user of the URL may not do that: see its ACL.",
    "WRONGTYPE": "Its keys are used by something else: choose another prefix (?prefix=…).",
    "MOVED": "It is a Redis Cluster: give a single server, with replicas if need be.",
    "CROSSSLOT": "It is a Redis Cluster: give a single server, with replicas if need be.",
    "unknown command": "It lacks a command: Redis 6.2 or newer, or Valkey, is needed.",
}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """`redis://[USER:PASSWORD@]HOST[:PORT][/DB]?prefix=…&timeout_s=…&eviction=…` taken apart."""

    #: What redis-py understands of it; may hold a password.
    server: str
    #: For people: no password.
    shown: str
    #: Every key begins with it, in braces, so that all lie in one slot.
    prefix: str = "gristmill"
    #: How long the server may be silent before a request counts as failed.
    timeout_s: float = 5.0
    #: Use the server although it may throw messages away when it is full.
    allows_eviction: bool = False


def parse_redis_url(url: str) -> RedisUrl:
    """Raises UsageError that shows no password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError as error:
        raise UsageError(f"The URL of the queue is wrong: {error}.") from error
    shown = f"{parts.scheme}://{host}:{port}{parts.path}"
    if parts.path.strip("/") and not parts.path[1:].isdigit():
        raise UsageError(f"{shown}: {parts.path[1:]!r} is no number of a database, such as /0.")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = (*_OWN_PARAMETERS, *_TLS_PARAMETERS)
    for name in given:
        if name not in known:
            raise UsageError(f"{name!r} is no parameter of {shown}. Known: {', '.join(known)}.")
    prefix = given.get("prefix", "gristmill")
    if not prefix or not set(prefix) <= _KEY_CHARACTERS:
        raise UsageError(f"prefix={prefix!r}: letters, digits, '_', '.' and '-', at least one.")
    eviction = given.get("eviction", "refuse")
    if eviction not in ("refuse", "allow"):
        raise UsageError(f"eviction={eviction!r}: one of refuse, allow.")
    passed_on = urlencode({name: given[name] for name in _TLS_PARAMETERS if name in given})
    return RedisUrl(
        server=urlunsplit(parts._replace(query=passed_on)),
        shown=shown,
        prefix=prefix,
        timeout_s=_seconds(given.get("timeout_s", "5")),
        allows_eviction=eviction == "allow",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0.1 <= seconds <= 3600:
        raise UsageError(f"timeout_s={text!r}: a number of seconds from 0.1 to 3600.")
    return seconds


class RedisServer:
    """One server. A connection that breaks is made anew by the next call."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        try:
            self.client: redis.Redis = redis.Redis.from_url(
                url.server,
                protocol=2,  # the replies of version 3 have other shapes
                socket_timeout=url.timeout_s,
                socket_connect_timeout=url.timeout_s,
                health_check_interval=15,
                # Once, at once, on another connection: one that was idle over a restart of the
                # server is dead. A reply that does not come is never waited for twice.
                retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
            )
        except (ValueError, RedisError) as error:
            raise UsageError(f"{url.shown}: {error}.") from error

    @contextmanager
    def asked_to(self, do: str) -> Iterator[None]:
        """Turns what redis-py raises into QueueError, or QueueRefused where it is for good."""
        try:
            yield
        except RedisError as error:
            raise self._in_words(error, do) from error

    def check(self) -> None:
        """See at start-up what the server is. Raises QueueError, or QueueRefused with the reason.

        A server that evicts keys is refused: it would lose messages in silence. One that keeps
        nothing over a restart is only warned of: the sweep rings again for what it forgets.
        """
        try:
            with self.asked_to("say what it is"):
                info: dict[str, Any] = self.client.info()
        except QueueRefused as error:
            if not isinstance(error.__cause__, NoPermissionError):
                raise
            log.warning(
                "queue not checked: its user may not INFO. See yourself that maxmemory-policy is "
                "noeviction and appendonly is on. server=%s",
                self._url.shown,
            )
            return
        self._check_version(str(info.get("redis_version", "0")))
        self._check_eviction(str(info.get("maxmemory_policy", "noeviction")))
        if not info.get("aof_enabled"):
            log.warning(
                "queue forgets: %s writes no append-only file, so a restart costs messages (no "
                "rows: they are sent again). Set 'appendonly yes' to spare the time.",
                self._url.shown,
            )
        name = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version", info.get("redis_version"))
        log.info("queue ready server=%s version=%s-%s", self._url.shown, name, version)

    def close(self) -> None:
        self.client.close()

    def _check_version(self, version: str) -> None:
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers < _OLDEST_VERSION:
            raise QueueRefused(
                f"{self._url.shown} is Redis {version}: 6.2 or newer, or Valkey, is needed."
            )

    def _check_eviction(self, policy: str) -> None:
        # The policies volatile-… take only keys that expire by themselves, and none of ours does.
        if not policy.startswith("allkeys"):
            return
        if not self._url.allows_eviction:
            raise QueueRefused(
                f"{self._url.shown} has maxmemory-policy {policy}: when it is full it throws "
                "messages away without a word. Set 'maxmemory-policy noeviction', or give another "
                "server; ?eviction=allow in the URL takes it as it is."
            )
        log.warning("queue may evict messages: maxmemory-policy=%s", policy)

    def _in_words(self, error: RedisError, do: str) -> QueueError:
        said = f"{self._url.shown} was asked to {do} ({_reply(error)})."
        if isinstance(
            error,
            (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError),
        ):
            return QueueRefused(f"{said} User or password of the URL are not accepted.")
        if isinstance(error, BusyLoadingError):
            return QueueError(f"{said} {_MEANINGS['LOADING']}")
        if isinstance(error, TimeoutError):
            return QueueError(
                f"{said} It gave no answer for {self._url.timeout_s:g} s; see that it is alive, "
                "and the network between."
            )
        if isinstance(error, ConnectionError):
            return QueueError(f"{said} It cannot be reached: see that it runs there.")
        for word, way_out in _REFUSALS.items():
            if word in _reply(error):
                return QueueRefused(f"{said} {way_out}")
        for word, meaning in _MEANINGS.items():
            if word in _reply(error):
                return QueueError(f"{said} {meaning}")
        return QueueError(said)


def _reply(error: RedisError) -> str:
    """The server's words, with the code that redis-py takes off some of them."""
    code = getattr(error, "status_code", None)
    text = str(error) or type(error).__name__
    return f"{code} {text}" if code and code not in text else text
