"""GET /livez and /readyz: whether a process is alive, and whether it can do its work just now.

And GET /metrics, for Prometheus. Nobody shows a key here, so the address is for operators alone:
what is told names no tenant and no batch.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from gristmill.errors import UsageError

log = logging.getLogger(__name__)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Instead of a traceback on stderr: whoever asked may have gone before the answer."""
        if not isinstance(sys.exception(), OSError):
            log.exception("health not told")


@dataclass(frozen=True, slots=True)
class Health:
    """`live` false: restart it. `ready` false: it is loading, draining or waits out an outage."""

    live: bool
    ready: bool
    state: str
    troubles: tuple[str, ...] = ()


#: What /metrics answers to an Accept header: content type and body.
Page = Callable[[str], tuple[str, bytes]]


def parse_address(text: str) -> tuple[str, int] | None:
    """HOST:PORT, or None for `off`. Raises UsageError."""
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address: write HOST:PORT (port 0 is any), or off.")
    return host.strip("[]"), int(port)


@contextmanager
def health_served(
    address: str, read: Callable[[], Health], metrics: Page | None = None
) -> Iterator[None]:
    """While entered, health is told on HOST:PORT, which is logged; nowhere for `off`."""
    parsed = parse_address(address)
    if parsed is None:
        yield
        return
    with HealthServer(parsed, read, metrics) as server:
        log.info("health url=%s/readyz", server.url)
        yield


class HealthServer:
    """While entered, answers on an address: 200 for yes, 503 for no, the reasons as JSON."""

    def __init__(
        self,
        address: tuple[str, int],
        read: Callable[[], Health],
        metrics: Page | None = None,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics" and metrics is not None:
                    self._answer(200, *metrics(self.headers.get("Accept", "")))
                    return
                health = read()
                known = {"/livez": health.live, "/readyz": health.live and health.ready}
                is_good = known.get(self.path)
                body = json.dumps(asdict(health)).encode() + b"\n"
                status = 404 if is_good is None else 200 if is_good else 503
                self._answer(status, "application/json", body)

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        try:
            self._server = _Server(address, Handler)
        except OSError as error:
            raise UsageError(
                f"Health cannot be told on {address[0]}:{address[1]}: {error.strerror}. Choose "
                "another --health HOST:PORT, or off."
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
