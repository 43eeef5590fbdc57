"""Asks a machine of AWS whether it is about to be taken away, so that its worker can save its work.

Through the instance metadata service, version 2 (IMDSv2): a token first, then two documents that
are not there until AWS has something to say. What is not heard costs little: a worker may be killed
at any moment.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from gristmill.process.signals import StopSignals
from gristmill.settings import Settings

log = logging.getLogger(__name__)

#: AWS gives two minutes, and asks for a look every five seconds.
POLL_S = 2.0
#: The service is on the machine itself, one hop away.
_TIMEOUT_S = 1.0
_TOKEN_TTL_S = 6 * 3600
_TOKEN = "latest/api/token"
_INSTANCE_ACTION = "latest/meta-data/spot/instance-action"
_REBALANCE = "latest/meta-data/events/recommendations/rebalance"
_SILENT = (OSError, http.client.HTTPException)


@contextmanager
def spot_watched(settings: Settings, signals: StopSignals) -> Iterator[None]:
    """While entered, a notice drains this process as SIGTERM does, if the settings ask for it."""
    if settings.spot_notice == "off":
        yield
        return

    def drain(notice: str) -> None:
        log.warning("draining reason=%s", notice)
        signals.drain()

    early = settings.spot_notice == "aws-early"
    with SpotWatch(settings.spot_notice_url, drain, early=early):
        yield


class MetadataService:
    """The documents of a machine. One thread at a time may call it."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._token: str | None = None
        # Never through a proxy: it would ask the proxy's machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read(self, path: str) -> str | None:
        """None for a document that is not there. Raises OSError or HTTPException
        when the service does not answer."""
        for tries_left in (1, 0):
            try:
                return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._find_token()})
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401 or not tries_left:
                    raise
                self._token = None  # it has run out
        raise AssertionError("the loop above returns or raises")

    def _find_token(self) -> str:
        if self._token is None:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
            self._token = self._ask("PUT", _TOKEN, ttl)
        return self._token

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(f"{self._url}/{path}", headers=headers, method=method)
        with self._opener.open(request, timeout=_TIMEOUT_S) as reply:
            return str(reply.read(64 * 1024).decode("utf-8", "replace"))


def find_notice(service: MetadataService, *, early: bool) -> str | None:
    """What AWS has announced, in words; None while it has not. Raises what `read` does.

    With `early` the recommendation to look for another machine counts too: it comes before the
    notice, or without one, when the risk has grown.
    """
    said = service.read(_INSTANCE_ACTION)
    if said is not None:
        action, at = _fields(said, "action", "time")
        return f"spot notice: the machine gets action={action} at={at}"
    if early and (said := service.read(_REBALANCE)) is not None:
        (at,) = _fields(said, "noticeTime")
        return f"rebalance recommendation at={at}"
    return None


def _fields(document: str, *names: str) -> list[str]:
    """Whatever it looks like: that it is there is the notice."""
    try:
        found = json.loads(document)
    except ValueError:
        found = {}
    known = found if isinstance(found, dict) else {}
    return [str(known.get(name, "unknown")) for name in names]


class SpotWatch:
    """While entered, a thread looks; at the first notice it calls `on_notice` and is done."""

    def __init__(
        self,
        url: str,
        on_notice: Callable[[str], None],
        *,
        early: bool,
        poll_s: float = POLL_S,
    ) -> None:
        self._service = MetadataService(url)
        self._url = url
        self._on_notice = on_notice
        self._early = early
        self._poll_s = poll_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spot-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        is_silent = False
        while not self._closing.is_set():
            try:
                notice = find_notice(self._service, early=self._early)
            except _SILENT as error:
                if not is_silent:
                    log.warning("no answer of the metadata service url=%s: %s", self._url, error)
                is_silent = True
            else:
                is_silent = False
                if notice is not None:
                    self._on_notice(notice)
                    return
            self._closing.wait(self._poll_s)
