"""Puts the dashboard together: `add_dashboard(app, api)` gives the API its pages."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gristmill.api.access import Scope
from gristmill.api.context import Api
from gristmill.dashboard import batch, batches, fleet, keys, login, webhooks
from gristmill.dashboard.failures import HANDLERS
from gristmill.dashboard.render import Renderer, base_of
from gristmill.dashboard.session import Sessions
from gristmill.dashboard.static import StaticFiles
from gristmill.dashboard.visit import Desk, Visit, form, page

PATH = "/dashboard"
#: Where a key comes first that does not have the scope for batches.
_FIRST = (
    (Scope.BATCHES_READ, "/batches"),
    (Scope.WEBHOOKS_READ, "/webhooks"),
    (Scope.OPERATOR, "/fleet"),
)


def add_dashboard(app: FastAPI, api: Api) -> None:
    """The pages below PATH, and the way there from the root."""

    def lead_there(request: Request) -> Response:
        return RedirectResponse(f"{base_of(request)}{PATH}/", 307)

    for path in ("/", PATH):
        app.add_route(path, lead_there, include_in_schema=False)
    app.mount(PATH, create_dashboard(api))


def create_dashboard(api: Api) -> Starlette:
    """An application of its own, so that its failures are pages too."""
    files = StaticFiles()
    app = Starlette(
        routes=[
            Route("/", page(_show_first)),
            Route("/login", login.show, methods=["GET"]),
            Route("/login", login.log_in, methods=["POST"]),
            Route("/logout", form(login.log_out), methods=["POST"]),
            Route("/static/{digest}/{name}", files.respond),
            *batches.ROUTES,
            *batch.ROUTES,
            *fleet.ROUTES,
            *keys.ROUTES,
            *webhooks.ROUTES,
        ],
        exception_handlers=HANDLERS,
    )
    app.state.api = api  # the audit log asks for it
    app.state.desk = Desk(api, Sessions(api.access.secret_for("dashboard")), Renderer(files))
    return app


def _show_first(visit: Visit) -> Response:
    path = next((path for scope, path in _FIRST if visit.may(scope)), _FIRST[0][1])
    return visit.go(path)
