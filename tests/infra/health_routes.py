"""The routes on which our processes tell their health, as they really answer them."""

from __future__ import annotations

import urllib.error
import urllib.request

from gristmill.api import health as api_health
from gristmill.process.health import Health, HealthServer

API_ROUTES = {str(getattr(route, "path", "")) for route in api_health.router.routes}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def _process_routes() -> set[str]:
    def read() -> Health:
        return Health(live=True, ready=True, state="running")

    with HealthServer(("127.0.0.1", 0), read) as server:
        return {path for path in ("/livez", "/readyz", "/healthz") if _answers(server.url + path)}


PROCESS_ROUTES = _process_routes()
