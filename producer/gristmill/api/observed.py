"""Counts requests for the metrics: by method, route and status, never by caller or path."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.telemetry import Metrics

#: Others are one, since anybody may send any word.
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_OTHER = "OTHER"
#: Of a path that is none of ours.
_NO_ROUTE = "none"


class Observed:
    """ASGI middleware around everything else, so that all that is answered counts."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._num_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        # Half an answer, or none, is a fault of ours.
        status = 500

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._run(1)
        try:
            await self._app(scope, receive, send_seen)
        finally:
            self._run(-1)
            took_s = time.perf_counter() - began
            method = scope["method"] if scope["method"] in _METHODS else _OTHER
            route = str(getattr(scope.get("route"), "path", _NO_ROUTE))
            self._metrics.add("gristmill_api_requests_total", (method, route, str(status)))
            self._metrics.observe("gristmill_api_request_seconds", (method, route), took_s)

    def _run(self, num: int) -> None:
        # Only the thread of the event loop comes here.
        self._num_running += num
        self._metrics.put("gristmill_api_requests_in_progress", value=self._num_running)
