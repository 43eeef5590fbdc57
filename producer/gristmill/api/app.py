"""Puts the API together: `create_app(Api(...))` is an ASGI application."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from gristmill.api import batches, files, health, keys, models, results
from gristmill.api.context import Api
from gristmill.api.failures import ErrorObject, add_failure_handlers
from gristmill.api.front_door import FrontDoor

_FAILURES = {
    400: "The request is wrong",
    401: "No live API key",
    403: "The key lacks a scope",
    404: "There is no such thing of yours",
    413: "The body is too large",
    416: "The range lies behind the end",
    500: "A fault in the service",
    503: "Not just now",
}


def create_app(api: Api) -> FastAPI:
    """All resources. Nothing is opened or started here."""
    app = FastAPI(
        title="Gristmill",
        summary="Files, Batches and Models as the OpenAI API has them, on machines you own.",
        version=version("gristmill"),
        telemetry={"tracing": False},
        docs_url=None,  # its page would load code from elsewhere
        redoc_url=None,
        responses={
            status: {"model": ErrorObject, "description": text}
            for status, text in _FAILURES.items()
        },
    )
    app.state.api = api
    for resource in (files, batches, results, models, keys, health):
        app.include_router(resource.router)
    add_failure_handlers(app)
    app.add_middleware(FrontDoor)
    return app
