"""One request for a page: who asks, by which session, and how it is answered.

`page` and `form` make endpoints of plain functions. No page forgets to ask for a scope, and no
form is taken from anywhere but a page of the same session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gristmill.api.access import Caller, Scope
from gristmill.api.context import Api, admit, check_scope
from gristmill.dashboard.forms import Form, check_origin, field_of, read_form, stale_form
from gristmill.dashboard.render import Renderer, base_of
from gristmill.dashboard.session import IDLE_S, Session, Sessions
from gristmill.ledger.sessions import has_ended

COOKIE = "gristmill_session"
#: The field of every form that says which session its page was for.
TOKEN_FIELD = "form_token"

Endpoint = Callable[[Request], Awaitable[Response]]


class LoggedOut(Exception):
    """There is no session, or it was logged out of, or its key has ended."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What all pages work with."""

    api: Api
    sessions: Sessions
    renderer: Renderer


@dataclass(frozen=True, slots=True)
class Visit:
    """`form` is empty for a page that is only looked at."""

    request: Request
    desk: Desk
    caller: Caller
    session: Session
    form: Form = field(default_factory=dict)

    @property
    def api(self) -> Api:
        return self.desk.api

    @property
    def is_poll(self) -> bool:
        """Whether only the part that changes is asked for."""
        return "hx-request" in self.request.headers

    @property
    def form_token(self) -> str:
        return self.desk.sessions.form_token(self.session)

    def asked(self, name: str) -> str | None:
        """A parameter of the URL; None where it is left out or empty."""
        return self.request.query_params.get(name) or None

    def may(self, *scopes: Scope) -> bool:
        return all(self.caller.may(scope) for scope in scopes)

    def field(self, name: str) -> str:
        return field_of(self.form, name)

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        return self.desk.renderer.response(
            self.request,
            template,
            status=status,
            now=self.api.clock(),
            visit=self,
            form_token=self.form_token,
            done=self.asked("done"),
            **values,
        )

    def go(self, path: str, *, done: str = "") -> Response:
        """On to another page, which says what was `done` (a word of `render.DONE`)."""
        query = f"?{urlencode({'done': done})}" if done else ""
        return RedirectResponse(f"{base_of(self.request)}{path}{query}", 303)

    def tell_audit(self, action: str, *, made_id: str = "") -> None:
        """The audit log names what was done as it names the same request to the API."""
        self.request.state.audit_action = action
        self.request.state.audit_details = {"by": "dashboard"}
        if made_id:
            self.request.state.made_id = made_id


def page(show: Callable[[Visit], Response], *scopes: Scope) -> Endpoint:
    """An endpoint that needs a session whose key has all of the scopes."""

    async def endpoint(request: Request) -> Response:
        visit = await _visit(request)
        for scope in scopes:
            check_scope(visit.caller, scope)
        return _renewed(visit, await run_in_threadpool(show, visit))

    return endpoint


def form(act: Callable[[Visit], Response], *scopes: Scope) -> Endpoint:
    """The same for what changes something: only from a form of a page of this session."""

    async def endpoint(request: Request) -> Response:
        check_origin(request)
        visit = await _visit(request)
        for scope in scopes:
            check_scope(visit.caller, scope)
        sent = await read_form(request)
        if not visit.desk.sessions.is_of_form(visit.session, field_of(sent, TOKEN_FIELD)):
            raise stale_form()
        acting = Visit(request, visit.desk, visit.caller, visit.session, sent)
        return _renewed(visit, await run_in_threadpool(act, acting))

    return endpoint


async def _visit(request: Request) -> Visit:
    """Raises LoggedOut, and ApiError (429) when the tenant asks too often."""
    desk: Desk = request.app.state.desk
    session = desk.sessions.read(request.cookies.get(COOKIE, ""), now=desk.api.now)
    if session is None:
        raise LoggedOut
    caller = await run_in_threadpool(_caller_of, desk.api, session)
    if caller is None:
        raise LoggedOut
    visit = Visit(request, desk, caller, session)
    # A failure is answered by a page with the same head.
    request.state.visit = visit
    await admit(request, desk.api, caller)
    return visit


def _caller_of(api: Api, session: Session) -> Caller | None:
    with api.ledger.read() as conn:
        if has_ended(conn, session.nonce):
            return None
    return api.access.find_by_id(session.key_id)


def _renewed(visit: Visit, response: Response) -> Response:
    session = visit.desk.sessions.renewed(visit.session, now=visit.api.now)
    is_taken_back = COOKIE in response.headers.get("set-cookie", "")
    if session is not None and not is_taken_back:
        hand_out(visit.request, response, visit.desk.sessions.write(session))
    return response


def hand_out(request: Request, response: Response, note: str) -> None:
    """The note of a session goes to the browser, which shows it to these pages only."""
    behind_tls = request.headers.get("x-forwarded-proto", "").startswith("https")
    response.set_cookie(
        COOKIE,
        note,
        max_age=IDLE_S,
        path=base_of(request),
        secure=behind_tls or request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def take_back(request: Request, response: Response) -> None:
    response.delete_cookie(COOKIE, path=base_of(request), httponly=True, samesite="lax")


def path_of(*parts: str) -> str:
    """`/batches/batch_1` of its parts."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
