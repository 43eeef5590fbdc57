"""Makes answers of templates: what stands in them is escaped, and nothing runs that is not ours."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gristmill.adapters import name_of
from gristmill.api.access import Scope
from gristmill.dashboard import chart, formats
from gristmill.dashboard.static import StaticFiles
from gristmill.values import format_duration

#: What a page says after a form was sent, by the word in its URL.
DONE = {
    "cancelling": "The batch is being cancelled. What is finished is kept.",
    "retried": "This batch runs again what had no answer.",
    "revoked": "The key is revoked. It is refused everywhere within seconds.",
    "tested": "A test event was sent, and the endpoint took it.",
    "replayed": "The event is sent again to every enabled endpoint that listens to it.",
    "endpoint-enabled": "The endpoint is enabled. What waited for it is sent now.",
    "endpoint-disabled": "The endpoint is disabled. Nothing is sent to it.",
    "endpoint-deleted": "The endpoint is deleted, and its log with it.",
}

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # With `no-referrer` browsers would not say where a form comes from.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Renderer:
    """Any thread may call `response`."""

    def __init__(self, files: StaticFiles) -> None:
        self._files = files
        self._environment = Environment(
            loader=PackageLoader("gristmill.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals |= {
            "Scope": Scope,
            "bar": chart.bar,
            "chart_width": chart.WIDTH,
            "chart_height": chart.HEIGHT,
            "version": version("gristmill"),
            "percent": formats.percent,
            "money": formats.money,
        }
        for filter_ in (formats.count, formats.short, formats.absolute, formats.plain, name_of):
            self._environment.filters[filter_.__name__] = filter_
        self._environment.filters["duration"] = format_duration

    def response(
        self, request: Request, template: str, *, now: float, status: int = 200, **values: Any
    ) -> Response:
        base = base_of(request)
        text = self._environment.get_template(template).render(
            base=base,
            origin=f"{request.url.scheme}://{request.url.netloc}",
            static=f"{base}/static/{self._files.digest}",
            when=partial(formats.when, now=now),
            done_text=DONE.get(values.pop("done", None) or ""),
            **values,
        )
        return HTMLResponse(text, status, _HEADERS)


def base_of(request: Request) -> str:
    """The path below which the dashboard is, without a slash at its end."""
    return str(request.scope.get("root_path", ""))
