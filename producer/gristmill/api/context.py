"""What the handlers of all resources work with, and how they ask who is calling."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gristmill.api.access import Access, Caller, Scope
from gristmill.api.failures import ApiError
from gristmill.ledger.ledger import Ledger
from gristmill.process.health import Health
from gristmill.settings import Settings
from gristmill.stores.base import Store

#: All ids that were ever given out look like this; nothing else is looked for.
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_bearer = HTTPBearer(auto_error=False, description="An API key: gm_…")


@dataclass(frozen=True, slots=True)
class Api:
    """The service behind the handlers. `clock` is Unix time in seconds."""

    ledger: Ledger
    store: Store
    settings: Settings
    clock: Callable[[], float]
    access: Access
    read_health: Callable[[], Health]
    #: Called after each new batch: where ingest runs in this process, it looks at once.
    on_submitted: Callable[[], None] = lambda: None

    @property
    def now(self) -> int:
        return int(self.clock())


def _api_of(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


UseApi = Annotated[Api, Depends(_api_of)]


async def _caller_of(
    api: UseApi,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> Caller:
    text = credentials.credentials if credentials else ""
    caller = api.access.find_believed(text)
    if caller is None:
        caller = await run_in_threadpool(api.access.find, text)
    if caller is None:
        raise ApiError(
            401,
            "Incorrect API key. Send a live one as 'Authorization: Bearer gm_...'; "
            "`gristmill keys create` makes one.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    return caller


AnyCaller = Annotated[Caller, Depends(_caller_of)]


def _with(scope: Scope) -> Any:
    def check(caller: AnyCaller) -> Caller:
        if not caller.may(scope):
            raise ApiError(
                403,
                f"This API key lacks the scope {scope.value!r}. Use one that has it.",
                code="missing_scope",
                type="permission_error",
            )
        return caller

    # async, so that no thread is needed for it
    async def dependency(caller: AnyCaller) -> Caller:
        return check(caller)

    return Depends(dependency)


FilesReader = Annotated[Caller, _with(Scope.FILES_READ)]
FilesWriter = Annotated[Caller, _with(Scope.FILES_WRITE)]
BatchesReader = Annotated[Caller, _with(Scope.BATCHES_READ)]
BatchesWriter = Annotated[Caller, _with(Scope.BATCHES_WRITE)]
Admin = Annotated[Caller, _with(Scope.ADMIN)]


def is_id(text: str) -> bool:
    """Whether this can be an id at all."""
    return _ID.fullmatch(text) is not None
