"""/healthz: the process is there. /readyz: it can do its work just now."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from gristmill.api.context import UseApi
from gristmill.errors import GristmillError
from gristmill.ledger import models

router = APIRouter(tags=["Health"])


@router.get("/healthz")
def tell_alive(api: UseApi, response: Response) -> dict[str, str]:
    is_live = api.read_health().live
    response.status_code = 200 if is_live else 503
    return {"status": "ok" if is_live else "failing"}


@router.get("/readyz", responses={503: {"description": "Not just now"}})
def tell_ready(api: UseApi, response: Response) -> dict[str, Any]:
    """Also looks whether the Ledger answers. Says no more than that, since it asks for no key."""
    health = api.read_health()
    troubles = len(health.troubles)
    try:
        with api.ledger.read() as conn:
            models.list_served(conn, now=api.now)
    except GristmillError:
        troubles += 1
    is_ready = health.live and health.ready and not troubles
    response.status_code = 200 if is_ready else 503
    return {"status": "ok" if is_ready else "waiting", "state": health.state}
