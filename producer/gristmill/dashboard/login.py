"""Logging in with an API key, and out again. The key itself is kept nowhere."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gristmill.api.context import let_in
from gristmill.api.failures import ApiError
from gristmill.dashboard.forms import check_origin, field_of, read_form
from gristmill.dashboard.render import base_of
from gristmill.dashboard.visit import Desk, Visit, hand_out, take_back
from gristmill.ledger.sessions import end_session

#: Pages of the dashboard, and nothing else that a browser could be sent to.
_NEXT = re.compile(r"/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*(\?[A-Za-z0-9_=&-]*)?")


async def show(request: Request) -> Response:
    return _page(request, wanted=request.query_params.get("next", ""))


async def log_in(request: Request) -> Response:
    """Wrong keys count as they do everywhere in the API."""
    check_origin(request)
    desk: Desk = request.app.state.desk
    form = await read_form(request)
    wanted = field_of(form, "next")
    try:
        caller = await let_in(request, desk.api, field_of(form, "key"))
    except ApiError as error:
        if error.status == 401:
            return _page(
                request,
                status=401,
                wanted=wanted,
                problem="This is no live API key. It may have been revoked, or have expired. "
                "Keys begin with gm_.",
            )
        if error.status == 429:
            response = _page(request, status=429, wanted=wanted, problem=error.message)
            response.headers["retry-after"] = error.headers["retry-after"]
            return response
        raise
    request.state.audit_action = "POST /dashboard/login"
    session = desk.sessions.begin(caller.key_id, now=desk.api.now)
    path = wanted if _NEXT.fullmatch(wanted) else "/"
    response = RedirectResponse(f"{base_of(request)}{path}", 303)
    hand_out(request, response, desk.sessions.write(session))
    return response


def log_out(visit: Visit) -> Response:
    session = visit.session
    with visit.api.ledger.write() as conn:
        end_session(conn, session.nonce, forget_at=session.longest_until)
    response = visit.go("/login")
    take_back(visit.request, response)
    return response


def _page(request: Request, *, wanted: str, problem: str = "", status: int = 200) -> Response:
    desk: Desk = request.app.state.desk
    return desk.renderer.response(
        request,
        "login.html",
        now=desk.api.clock(),
        status=status,
        visit=None,
        wanted=wanted if _NEXT.fullmatch(wanted) else "",
        problem=problem,
    )
