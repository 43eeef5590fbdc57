"""What each request passes first: it gets an id, and an answer whatever happens behind."""

from __future__ import annotations

import logging
import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.api.failures import ApiError, error_response, fault

log = logging.getLogger(__name__)

HEADER = "x-request-id"
_MAX_HEADER_BYTES = 32 * 1024
_MAX_URL_BYTES = 8 * 1024


class FrontDoor:
    """ASGI middleware around everything else, so that also a failure has its id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id

        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                for name, value in scope["state"].get("answer_headers", {}).items():
                    headers[name] = value
            await send(message)

        app = self._app
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEADER_BYTES:
            message = f"The headers have more than {_MAX_HEADER_BYTES} bytes. Send shorter ones."
            app = error_response(ApiError(431, message, code="headers_too_large"))
        elif len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _MAX_URL_BYTES:
            message = f"The URL has more than {_MAX_URL_BYTES} bytes. Send a shorter one."
            app = error_response(ApiError(414, message, code="url_too_long"))
        elif _is_packed(scope):
            message = "Bodies are taken as they are. Send this one without a Content-Encoding."
            app = error_response(ApiError(415, message, code="unsupported_encoding"))
        try:
            await app(scope, receive, send_with_id)
        except Exception:  # one request that fails must not take the others with it
            log.exception("request failed id=%s path=%s", request_id, scope["path"])
            if has_begun:
                raise  # the connection breaks: half an answer must not look like a whole one
            await error_response(fault())(scope, receive, send_with_id)


def _is_packed(scope: Scope) -> bool:
    """Whether the body would grow when it is unpacked, and nobody knows how much."""
    found = [value for name, value in scope["headers"] if name == b"content-encoding"]
    return any(value.strip().lower() not in (b"", b"identity") for value in found)
