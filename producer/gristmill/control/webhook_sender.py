"""Sends one webhook: resolves the name once, checks every address, connects to a checked one.

No redirects, no proxies, no cookies, one deadline over all; of the answer only the beginning is
read. It decides nothing about what follows.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore2
import httpx2

from gristmill.control.webhook_addresses import (
    AddressPolicy,
    AddressRefused,
    UrlRefused,
    port_of,
)

#: From the look-up of the name to the status line.
ATTEMPT_S = 15.0
#: So much of the answer is kept.
MAX_ANSWER_BYTES = 1024
#: Of several addresses, so many are tried.
_MAX_ADDRESSES = 3

#: Name and port to addresses; raises OSError.
Resolve = Callable[[str, int], list[str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status, or the class of the error for which there is none."""

    duration_s: float
    status_code: int | None = None
    error: str | None = None
    body: str = ""
    #: Seconds, as the receiver asks for them.
    retry_after_s: float | None = None

    @property
    def is_success(self) -> bool:
        """2xx and nothing else: a redirect is none."""
        return self.status_code is not None and 200 <= self.status_code < 300


def resolve_name(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class WebhookSender:
    """Any thread may call `send`."""

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        resolve: Resolve = resolve_name,
        timeout_s: float = ATTEMPT_S,
        ssl_context: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._policy = policy
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._ssl_context = ssl_context
        self._monotonic = monotonic
        self._wall_clock = wall_clock

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One POST. Whatever the receiver does is an Answer, not an exception."""
        started = self._monotonic()
        status: int | None = None
        error, text, retry_after_s = None, "", None
        try:
            status, answer_headers, text = self._post(url, headers, body, started)
            retry_after_s = _retry_after_s(answer_headers.get(b"retry-after"), self._wall_clock())
        except (UrlRefused, AddressRefused):
            error = "address_refused"
        except (httpcore2.TimeoutException, TimeoutError):
            error = "timeout"
        except _TlsFailed:
            error = "tls_failed"
        except httpcore2.ConnectError:
            error = "connection_failed"
        except httpcore2.NetworkError:
            error = "connection_broken"
        except httpcore2.ProtocolError:
            error = "no_http_answer"
        except (OSError, UnicodeError):
            error = "name_not_found"
        return Answer(self._monotonic() - started, status, error, text, retry_after_s)

    def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, started: float
    ) -> tuple[int, Mapping[bytes, bytes], str]:
        target = self._policy.check_url(url)
        deadline = _Deadline(started + self._timeout_s, self._monotonic)
        backend = _CheckedBackend(self._policy, self._resolve, target, deadline)
        if target.scheme == "https" and self._ssl_context is None:
            # Kept: to read all authorities takes longer than an attempt.
            self._ssl_context = ssl.create_default_context()
        with (
            httpcore2.ConnectionPool(
                ssl_context=self._ssl_context, network_backend=backend
            ) as pool,
            pool.stream(
                "POST",
                httpcore2.URL(
                    scheme=target.raw_scheme,
                    host=target.raw_host,
                    port=port_of(target),
                    target=target.raw_path,
                ),
                headers=[
                    ("host", target.netloc.decode()),
                    *headers.items(),
                    ("accept-encoding", "identity"),
                ],
                content=body,
            ) as response,
        ):
            found = {name.lower(): value for name, value in response.headers}
            return response.status, found, _beginning(response)


class _TlsFailed(httpcore2.ConnectError):
    """There is somebody, but not who the certificate has to name."""


class _Deadline:
    def __init__(self, at: float, monotonic: Callable[[], float]) -> None:
        self._at, self._monotonic = at, monotonic

    def left_s(self) -> float:
        """Raises TimeoutError when nothing is left."""
        left_s = self._at - self._monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _CheckedBackend(httpcore2.NetworkBackend):
    """Connects for the HTTP library, which goes on to use the name for Host, SNI, certificate."""

    def __init__(
        self, policy: AddressPolicy, resolve: Resolve, url: httpx2.URL, deadline: _Deadline
    ) -> None:
        self._policy, self._resolve, self._url = policy, resolve, url
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        resolved = _in_time(lambda: self._resolve(host, port), self._deadline)
        addresses = self._policy.check_addresses(resolved, self._url)[:_MAX_ADDRESSES]
        failure: Exception = httpcore2.ConnectError("no address")
        for i, address in enumerate(addresses):
            # Leave the others their share of the time.
            share_s = self._deadline.left_s() / (len(addresses) - i)
            try:
                stream = httpcore2.SyncBackend().connect_tcp(address, port, share_s)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return _DeadlineStream(stream, self._deadline)
        raise failure


class _DeadlineStream(httpcore2.NetworkStream):
    """However slowly bytes trickle, all ends at the deadline."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: _Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        try:
            secured = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left_s())
        except httpcore2.ConnectError as error:
            raise _TlsFailed(str(error)) from error
        return _DeadlineStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _in_time(resolve: Callable[[], list[str]], deadline: _Deadline) -> list[str]:
    """The system's resolver knows no deadline: it is left alone when it takes too long."""
    answers: queue.SimpleQueue[list[str] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(resolve())
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="webhook-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.left_s())
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _beginning(response: httpcore2.Response) -> str:
    """The first of the body. The status stands, even when the body breaks off or never ends."""
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        for piece in response.iter_stream():
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes >= MAX_ANSWER_BYTES:
                break
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError):
        pass
    except TimeoutError:
        pass
    text = b"".join(pieces)[:MAX_ANSWER_BYTES].decode("utf-8", errors="replace")
    return text.replace("\0", "\ufffd")  # which no database of text takes


def _retry_after_s(header: bytes | None, now: float) -> float | None:
    """Of seconds or an HTTP date (RFC 9110, 10.2.3); None for anything else."""
    if header is None:
        return None
    text = header.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None
