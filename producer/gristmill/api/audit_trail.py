"""Writes into the audit log what a request has changed, before its answer is sent."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.api.access import Caller
from gristmill.api.context import Api
from gristmill.api.failures import error_response, unavailable
from gristmill.errors import GristmillError
from gristmill.ledger import audit
from gristmill.ledger.audit import AuditEvent
from gristmill.ledger.ids import new_id

log = logging.getLogger(__name__)

_READS = ("GET", "HEAD", "OPTIONS")


class AuditTrail:
    """ASGI middleware behind the front door: no route can forget it.

    Whoever gets an answer is in the log: when it cannot be written, the answer is 503. The log
    of the process has the same line, for the moment between the change and its entry.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READS:
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        is_lost = False

        async def send_recorded(message: Message) -> None:
            nonlocal start, is_lost
            if is_lost:
                return
            caller = scope["state"].get("caller")
            # A page is answered by the way to another one.
            if message["type"] == "http.response.start" and message["status"] < 400 and caller:
                start = message
                return
            if start is not None:
                body = b"" if message.get("more_body") else message.get("body", b"")
                try:
                    await run_in_threadpool(_record, scope, caller, body)
                except GristmillError as error:
                    log.error("audit event lost reason=%s", error)
                    is_lost = True
                    await error_response(unavailable())(scope, receive, send)
                    return
                await send(start)
                start = None
            await send(message)

        await self._app(scope, receive, send_recorded)


class _Named(msgspec.Struct):
    """What is read of an answer."""

    id: str = ""


def _record(scope: Scope, caller: Caller, body: bytes) -> None:
    api: Api = scope["app"].state.api
    state = scope["state"]
    route = scope.get("route")
    # What a page did is called as the same request to the API.
    action = state.get("audit_action") or (
        f"{scope['method']} {getattr(route, 'path', scope['path'])}"
    )
    try:
        made_id = state.get("made_id") or msgspec.json.decode(body, type=_Named).id
    except msgspec.MsgspecError:
        made_id = ""
    ids = [str(value) for value in scope.get("path_params", {}).values()]
    details: dict[str, Any] = dict(state.get("audit_details", {}))
    if ids and made_id not in ("", ids[-1]):
        details["made"] = made_id
    event = AuditEvent(
        id=new_id("audit_", api.clock()),
        tenant_id=caller.tenant_id,
        action=action,
        object_id=ids[-1] if ids else made_id,
        created_at=api.now,
        key_id=caller.key_id,
        address=scope["client"][0] if scope.get("client") else None,
        request_id=state.get("request_id"),
        details=details or None,
    )
    log.info(
        "audit tenant=%s key=%s action=%r object=%s",
        *(event.tenant_id, event.key_id, event.action, event.object_id),
    )
    with api.ledger.write() as conn:
        audit.record(conn, event)
