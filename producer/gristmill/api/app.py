"""Puts the API together: `create_app(Api(...))` is an ASGI application."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from pydantic.json_schema import models_json_schema

from gristmill.api import (
    audit,
    batch_life,
    batches,
    estimates,
    files,
    health,
    keys,
    models,
    results,
    tenants,
    usage,
    webhook_routes,
    workers,
)
from gristmill.api.audit_trail import AuditTrail
from gristmill.api.batches import BatchRequest
from gristmill.api.context import Api
from gristmill.api.estimates import EstimateRequest
from gristmill.api.failures import ErrorObject, add_failure_handlers
from gristmill.api.front_door import FrontDoor
from gristmill.api.keys import KeyRequest, RotateRequest
from gristmill.api.observed import Observed
from gristmill.api.tenants import QuotasRequest
from gristmill.dashboard.app import add_dashboard

#: Which handlers read by themselves.
_BODIES = (BatchRequest, KeyRequest, RotateRequest, QuotasRequest, EstimateRequest)
_FAILURES = {
    400: "The request is wrong",
    401: "No live API key",
    403: "The key lacks a scope",
    404: "There is no such thing of yours",
    408: "The body stopped coming",
    409: "It is not in the state for this",
    413: "The body is too large",
    414: "The URL is too long",
    415: "The body is compressed",
    416: "The range lies behind the end",
    429: "More than the quotas of the tenant allow",
    431: "The headers are too large",
    500: "A fault in the service",
    503: "Not just now",
}


def create_app(api: Api) -> FastAPI:
    """All resources. Nothing is opened or started here."""
    app = FastAPI(
        title="Gristmill",
        summary="Files, Batches and Models as the OpenAI API has them, on machines you own.",
        version=version("gristmill"),
        telemetry=_telemetry(api),
        docs_url=None,  # its page would load code from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # to a URL of the caller's wording; failures.py has its own
        responses={
            status: {"model": ErrorObject, "description": text}
            for status, text in _FAILURES.items()
        },
    )
    app.state.api = api
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    account = (keys, tenants, usage, estimates, audit, workers)
    for resource in (files, batches, batch_life, results, models, *account, health):
        app.include_router(resource.router)
    for router in webhook_routes.ROUTERS:
        app.include_router(router)
    add_dashboard(app, api)
    add_failure_handlers(app)
    app.add_middleware(AuditTrail)
    app.add_middleware(FrontDoor)
    if api.telemetry.metrics.is_on:
        app.add_middleware(Observed, metrics=api.telemetry.metrics)
    return app


def _telemetry(api: Api) -> TelemetryConfig:
    """FastAPI has a span for each request, if anybody traces. The rest is told in our own way."""
    provider = api.telemetry.tracer.provider
    return {
        "tracing": provider is not None,
        "tracer_provider": provider,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": False,
        "exclude": lambda scope: scope.get("path") in ("/healthz", "/readyz"),
    }


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that handlers read by themselves."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        _, bodies = models_json_schema(
            [(kind, "validation") for kind in (*_BODIES, *webhook_routes.BODIES)],
            ref_template="#/components/schemas/{model}",
        )
        document["components"]["schemas"] |= bodies["$defs"]
        app.openapi_schema = document
    return app.openapi_schema
