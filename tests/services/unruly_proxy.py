"""An HTTP proxy that misbehaves by script: refuses, hangs up, cuts bodies, alters replies."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)
    #: How much of the body is sent before the connection is cut.
    cut_at: int | None = None


#: Does something to a request or its reply. `forward()` asks the server behind the proxy. None as
#: a reply hangs up.
Act = Callable[[Request, Callable[[], Reply]], Reply | None]


@dataclass
class Rule:
    """Misbehave in one way, the next `times` times that a request fits."""

    act: Act
    fits: Callable[[Request], bool] = lambda request: True
    times: int = 1


@dataclass
class UnrulyProxy:
    url: str
    target: str
    rules: list[Rule] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> Reply | None:
        with self._lock:
            self.seen.append(replace(request, headers=dict(request.headers)))
            rule = next((r for r in self.rules if r.times > 0 and r.fits(request)), None)
            if rule is not None:
                rule.times -= 1
        if rule is None:
            return self.forward(request)
        return rule.act(request, lambda: self.forward(request))

    def forward(self, request: Request) -> Reply:
        parts = urlsplit(self.target)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            connection.request(request.method, request.path, request.body, request.headers)
            reply = connection.getresponse()
            headers = [
                (name, value)
                for name, value in reply.getheaders()
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "date")
            ]
            body = reply.read()
            if request.method == "HEAD":
                headers.append(("Content-Length", reply.getheader("Content-Length", "0")))
            else:
                headers.append(("Content-Length", str(len(body))))
            return Reply(reply.status, headers, body)
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed in the middle of a request is none of our errors."""


@contextmanager
def unruly_proxy(target: str) -> Iterator[UnrulyProxy]:
    """Runs in a thread of this process until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            length = int(self.headers.get("Content-Length", 0))
            request = Request(
                self.command, self.path, dict(self.headers.items()), self.rfile.read(length)
            )
            reply = proxy.answer(request)
            if reply is None:
                self.close_connection = True
                return
            self.send_response_only(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.end_headers()
            body = reply.body if reply.cut_at is None else reply.body[: reply.cut_at]
            self.wfile.write(body)
            if reply.cut_at is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = UnrulyProxy(f"http://127.0.0.1:{server.server_address[1]}", target)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refuse(status: int, code: str, message: str = "said the test") -> Act:
    """An error document as S3 sends it, instead of the server's reply."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    return lambda request, forward: Reply(status, headers, body)


def refuse_json(status: int, code: str, message: str = "said the test") -> Act:
    """An error document as SQS sends it."""
    body = json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": message}).encode()
    return lambda request, forward: json_reply(status, body)


def json_reply(status: int, body: bytes) -> Reply:
    headers = [("Content-Type", "application/x-amz-json-1.0"), ("Content-Length", str(len(body)))]
    return Reply(status, headers, body)


def lose_reply(request: Request, forward: Callable[[], Reply]) -> Reply | None:
    """The server does what it was asked, and the caller never hears of it."""
    forward()
    return None


def cut_after(num_bytes: int) -> Act:
    """The reply's body ends early."""

    def act(request: Request, forward: Callable[[], Reply]) -> Reply:
        reply = forward()
        reply.cut_at = num_bytes
        return reply

    return act
