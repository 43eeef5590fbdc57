"""Every answer of the dashboard that is not 200, as a page that says the way on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from gristmill.api.failures import ApiError, unavailable
from gristmill.dashboard.render import base_of
from gristmill.dashboard.visit import Desk, LoggedOut, Visit, take_back
from gristmill.errors import GristmillError
from gristmill.quotas import QuotaExceeded

log = logging.getLogger(__name__)

_TITLES: Mapping[int, str] = {
    403: "Not allowed",
    404: "There is nothing here",
    429: "Too much at once",
    503: "Not just now",
}


async def _answer_logged_out(request: Request, _: Exception) -> Response:
    base = base_of(request)
    path = request.url.path.removeprefix(base)
    query = ""
    if request.method == "GET" and path not in ("", "/"):
        query = f"?{urlencode({'next': path})}"
    response: Response = RedirectResponse(f"{base}/login{query}", 303)
    if "hx-request" in request.headers:
        # A part of a page was asked for: the page as a whole goes there.
        path = (request.headers.get("hx-current-url") or "").rpartition(base)[2]
        query = f"?{urlencode({'next': path})}" if path.startswith("/") else ""
        response = Response(status_code=401, headers={"hx-redirect": f"{base}/login{query}"})
    take_back(request, response)
    return response


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _page(request, error)


async def _answer_quota(request: Request, error: Exception) -> Response:
    return _page(request, ApiError(429, str(error), code="rate_limit_exceeded"))


async def _answer_gristmill(request: Request, error: Exception) -> Response:
    """Ledger or Store cannot do it: later, or never, as the error says."""
    assert isinstance(error, GristmillError)
    if not error.retryable:
        raise error  # a fault, which the front door answers
    log.warning("page put off id=%s reason=%s", request.state.request_id, error)
    return _page(request, unavailable())


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "This page does not exist. It may have existed before."
    if error.status_code != 404:
        message = f"{error.detail}."
    headers = dict(error.headers or {})
    return _page(request, ApiError(error.status_code, message, code="", headers=headers))


async def _answer_gone(request: Request, _: Exception) -> Response:
    message = "The connection ended before the form was read. Send it again."
    return _page(request, ApiError(400, message, code="request_incomplete"))


async def _answer_fault(request: Request, _: Exception) -> Response:
    """What nobody has foreseen. The front door logs it."""
    message = (
        "This is a fault in the service. Its log has more, under the id of this request: "
        f"{getattr(request.state, 'request_id', 'unknown')}."
    )
    return _page(request, ApiError(500, message, code="internal_error"))


def _page(request: Request, error: ApiError) -> Response:
    desk: Desk = request.app.state.desk
    visit: Visit | None = getattr(request.state, "visit", None)
    response = desk.renderer.response(
        request,
        "error.html",
        now=desk.api.clock(),
        status=error.status,
        visit=visit,
        form_token=visit.form_token if visit else None,
        title=_TITLES.get(error.status, "That did not work"),
        message=error.message,
    )
    for name, value in error.headers.items():
        response.headers[name] = value
    # What a poll was to replace stays, and the page says that it is old.
    response.headers["hx-reswap"] = "none"
    return response


HANDLERS: Mapping[Any, Any] = {
    LoggedOut: _answer_logged_out,
    ApiError: _answer_api_error,
    QuotaExceeded: _answer_quota,
    GristmillError: _answer_gristmill,
    HTTPException: _answer_http,
    ClientDisconnect: _answer_gone,
    Exception: _answer_fault,
}
