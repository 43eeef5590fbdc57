"""The instance metadata service of a machine of AWS (IMDSv2), over HTTP on this machine."""

from __future__ import annotations

import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

_TOKEN_PATH = "/latest/api/token"
_DOCUMENTS = "/latest/meta-data/"
_INSTANCE_ACTION = "spot/instance-action"
_REBALANCE = "events/recommendations/rebalance"


class MetadataServer:
    """While entered, answers; the documents are there when a test has announced them."""

    def __init__(self) -> None:
        self._documents: dict[str, str] = {}
        self._tokens: set[str] = set()
        #: Paths that were asked for with a token that counts.
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
                if (
                    self.path != _TOKEN_PATH
                    or not ttl.isdigit()
                    or "X-Forwarded-For" in self.headers
                ):
                    self._answer(400)
                    return
                token = secrets.token_urlsafe(32)
                server._tokens.add(token)
                self._answer(200, token)

            def do_GET(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") not in server._tokens:
                    self._answer(401)
                    return
                path = self.path.removeprefix(_DOCUMENTS)
                server.asked.append(path)
                document = server._documents.get(path)
                self._answer(404 if document is None else 200, document or "")

            def _answer(self, status: int, body: str = "") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def interrupt(
        self, document: str = '{"action": "terminate", "time": "2026-01-01T00:02Z"}'
    ) -> None:
        """The spot notice: two minutes are left."""
        self._documents[_INSTANCE_ACTION] = document

    def recommend_rebalance(self) -> None:
        self._documents[_REBALANCE] = '{"noticeTime": "2026-01-01T00:00Z"}'

    def expire_tokens(self) -> None:
        self._tokens.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
