"""Every answer that is not 200, in the one envelope that OpenAI's clients read."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from gristmill.errors import GristmillError
from gristmill.quotas import QuotaExceeded
from gristmill.types import Endpoint

log = logging.getLogger(__name__)

#: After an outage a client shall come back so many seconds later.
_RETRY_AFTER_S = 5
#: So long a caller waits before it asks again whether a quota has room; its client does by itself.
_QUOTA_RETRY_S = 30.0


class ApiError(Exception):
    """An answer to a request that cannot be done. The message says the way out."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        type: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type
        self.headers = dict(headers or {})


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(BaseModel):
    error: ErrorDetail


def not_found(noun: str, found_id: str, *, param: str) -> ApiError:
    """The same for what is another's and for what never was."""
    return ApiError(404, f"There is no {noun} {found_id[:80]!a}.", code="not_found", param=param)


def refused(message: str, *, param: str | None, code: str = "invalid_value") -> ApiError:
    """A request that is wrong and stays so."""
    return ApiError(400, message, code=code, param=param)


def too_many(message: str, *, kind: str, wait_s: float) -> ApiError:
    """Not now, but after so many seconds, which official clients wait by themselves."""
    return ApiError(
        429,
        message,
        code="rate_limit_exceeded",
        type=kind,
        headers={
            "retry-after": str(math.ceil(wait_s)),
            "retry-after-ms": str(math.ceil(wait_s * 1000)),
        },
    )


def unavailable() -> ApiError:
    """Ledger or Store are away."""
    return ApiError(
        503,
        "The service cannot do this just now. Try again in a moment.",
        code="unavailable",
        type="server_error",
        headers={"retry-after": str(_RETRY_AFTER_S)},
    )


def fault() -> ApiError:
    """What nobody has foreseen."""
    message = "This is a fault in the service. Its log has more, under the id of this request."
    return ApiError(500, message, code="internal_error", type="server_error")


def add_failure_handlers(app: FastAPI) -> None:
    """All that a handler raises on purpose becomes an answer; the rest the front door answers."""
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(ClientDisconnect, _answer_gone)
    app.add_exception_handler(QuotaExceeded, _answer_quota)
    app.add_exception_handler(GristmillError, _answer_gristmill)


def error_response(error: ApiError) -> Response:
    detail = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    # ASCII only: a message may quote what a caller sent, and that may be no Unicode.
    body = json.dumps({"error": detail}).encode()
    return Response(body, error.status, error.headers, "application/json")


def _answer_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


def _answer_invalid(_: Request, error: Exception) -> Response:
    """A parameter of the URL or a header that is not as it should be."""
    assert isinstance(error, RequestValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    # Where it stands, its name, and perhaps which of several values.
    param = str(first["loc"][1])
    message = f"{param} is {str(first.get('input'))[:80]!a}: {first['msg']}."
    return error_response(refused(message, param=param))


def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
    code = codes.get(error.status_code, "invalid_request")
    message = error.detail
    path: str = request.scope["path"]
    if error.status_code == 404 and path.endswith("/") and _methods_of(path[:-1], request):
        return _without_slash(request)
    if error.status_code == 404 and path in set(Endpoint):
        code = "only_in_batches"
        message = (
            f"{path} is answered in batches only. Upload a .jsonl file whose lines have this "
            "`url`, and create a batch of it: client.files.create, client.batches.create."
        )
    elif error.status_code == 404:
        message = "There is no such URL here. The paths are those of the OpenAI API, below /v1."
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:
        # Starlette names those of the first route with this path only.
        headers["allow"] = ", ".join(_methods_of(path, request))
        message = f"{request.method} is nothing that can be done here, only {headers['allow']}."
    return error_response(ApiError(error.status_code, message, code=code, headers=headers))


def _without_slash(request: Request) -> Response:
    """Relative: what a caller calls this host, and with or without TLS, is not known here."""
    raw, query = request.scope["raw_path"].decode("latin-1"), request.url.query
    return Response(status_code=307, headers={"location": raw[:-1] + (query and f"?{query}")})


def _methods_of(path: str, request: Request) -> list[str]:
    """What can be done with this path."""
    document: dict[str, Any] = request.app.openapi()
    found: set[str] = set()
    for template, operations in document["paths"].items():
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path):
            found |= {method.upper() for method in operations}
    return sorted(found)


def _answer_gone(_: Request, error: Exception) -> Response:
    message = "The connection ended before the request was read. Send it again."
    return error_response(ApiError(400, message, code="request_incomplete"))


def _answer_gristmill(request: Request, error: Exception) -> Response:
    """Ledger or Store cannot do it: later, or never, as the error says."""
    assert isinstance(error, GristmillError)
    if not error.retryable:
        raise error  # a fault, which the front door answers
    log.warning("request put off id=%s reason=%s", request.state.request_id, error)
    return error_response(unavailable())


def _answer_quota(_: Request, error: Exception) -> Response:
    """Most quotas have room again by themselves; full storage has not."""
    assert isinstance(error, QuotaExceeded)
    if error.quota == "stored_bytes":
        kind = "insufficient_quota"
        headers = {"x-should-retry": "false"}
        return error_response(ApiError(429, str(error), code=kind, type=kind, headers=headers))
    return error_response(too_many(str(error), kind=error.quota, wait_s=_QUOTA_RETRY_S))
