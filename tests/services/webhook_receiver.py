"""Who is called back: a real HTTP server of this machine, which can be down, slow or rude."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Call:
    """One request, as it came over the wire."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    def is_signed_with(self, secret: str) -> bool:
        """By the words of the specification alone: HMAC-SHA256 over the bytes that came."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        text = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        return f"v1,{wanted}" in self.headers["webhook-signature"].split()


@dataclass(frozen=True)
class Reply:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class Receiver:
    """`answer` decides on each call; `calls` are all that came. Down until `start`."""

    def __init__(self, answer: Callable[[Call], Reply] = lambda call: Reply()) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self._port = 0
        self._server: _Server | None = None

    def __enter__(self) -> Receiver:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    @property
    def events(self) -> list[str]:
        return [call.event["type"] for call in self.calls]

    def start(self) -> None:
        """On the same port each time."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                call = Call(self.path, headers, body)
                receiver.calls.append(call)
                reply = receiver.answer(call)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """From now on connections are refused."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def wait(self, num_calls: int) -> list[Call]:
        """So many calls, or more, as soon as they have come."""
        give_up_at = time.monotonic() + 60
        while len(self.calls) < num_calls:
            assert time.monotonic() < give_up_at, self.calls
            time.sleep(0.01)
        return self.calls
