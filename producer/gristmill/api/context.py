"""What the handlers of all resources work with, and how they ask who is calling."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gristmill.api.access import Access, Caller, Scope
from gristmill.api.failures import ApiError, too_many
from gristmill.api.key_text import parse_key_text
from gristmill.api.upload_slots import UploadSlots
from gristmill.control.outlook import Outlook
from gristmill.control.webhook_vault import Vault
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.quick_look import QuickLook, quick_look
from gristmill.prices import NO_PRICES, PriceTable
from gristmill.process.health import Health
from gristmill.quotas import quotas_of
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill.telemetry import NO_TELEMETRY, Telemetry

#: So many callers at once may wait for what a webhook endpoint answers to a test.
_MAX_WEBHOOK_TESTS = 4
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
    prices: PriceTable = NO_PRICES
    telemetry: Telemetry = NO_TELEMETRY
    outlook: Outlook = field(init=False)
    quick_look: QuickLook | None = field(init=False)
    uploads: UploadSlots = field(default_factory=UploadSlots)
    webhook_tests: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_MAX_WEBHOOK_TESTS)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "outlook", self._outlook())
        object.__setattr__(self, "quick_look", quick_look(self.ledger))

    def _outlook(self) -> Outlook:
        most = self.settings.fleet_max_row_tokens
        return Outlook(self.ledger, self.clock, max_row_tokens=most)

    @property
    def now(self) -> int:
        return int(self.clock())

    @property
    def vault(self) -> Vault:
        return Vault.of(self.settings)


async def _api_of(request: Request) -> Api:
    # async, so that no thread is needed for it
    api: Api = request.app.state.api
    return api


UseApi = Annotated[Api, Depends(_api_of)]


async def _caller_of(
    request: Request,
    api: UseApi,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> Caller:
    return await let_in(request, api, credentials.credentials if credentials else "")


async def let_in(request: Request, api: Api, text: str) -> Caller:
    """Who shows this key; the request counts. Raises ApiError: 401, or 429."""
    caller = api.access.find_believed(text)
    if caller is None:
        caller = await _look_up(request, api, text)
    await admit(request, api, caller)
    return caller


async def admit(request: Request, api: Api, caller: Caller) -> None:
    """A request of a known caller counts. Raises ApiError (429) when its tenant asks too often."""
    # Middleware tells of it, in headers and in the audit log.
    request.state.caller = caller
    await _count_request(request, api, caller)


async def _look_up(request: Request, api: Api, text: str) -> Caller:
    """Raises ApiError: 401, or 429 for one wrong key more from an address that has shown many."""
    address = request.client.host if request.client else ""
    failed_logins = api.access.failed_logins
    wait_s = failed_logins.wait_s(address, api.settings.failed_logins_per_min)
    # Whoever shares an address with somebody who guesses keys, as all do behind some balancers,
    # is not locked out with him: a live key is let in, and so it is always looked for.
    can_be_live = not wait_s or parse_key_text(text) is not None
    caller = await run_in_threadpool(api.access.find, text) if can_be_live else None
    if caller is None and wait_s:
        raise too_many(
            "Many wrong API keys came from your address, and this is one more. Send a live one, "
            "or wait a moment.",
            kind="requests",
            wait_s=wait_s,
        )
    if caller is None:
        failed_logins.add(address)
        raise ApiError(
            401,
            "Incorrect API key. Send a live one as 'Authorization: Bearer gm_...'; "
            "`gristmill keys create` makes one.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    return caller


async def _count_request(request: Request, api: Api, caller: Caller) -> None:
    """Raises ApiError (429) when the tenant asks too often."""
    limit = quotas_of(api.settings, caller.own_quotas).requests_per_min
    if limit is None:
        return
    requests = api.access.requests
    standing = requests.take_at_hand(caller.tenant_id, limit)
    if standing is None:
        standing = await run_in_threadpool(requests.take, caller.tenant_id, limit)
    request.state.answer_headers = {
        "x-ratelimit-limit-requests": str(standing.limit),
        "x-ratelimit-remaining-requests": str(standing.remaining),
        "x-ratelimit-reset-requests": f"{standing.reset_s:.3f}s",
    }
    if not standing.taken:
        raise too_many(
            f"This tenant has sent the {limit} requests that it may send in a minute. Wait until "
            "the next one begins.",
            kind="requests",
            wait_s=standing.reset_s,
        )


AnyCaller = Annotated[Caller, Depends(_caller_of)]


def _with(scope: Scope) -> Any:
    # async, so that no thread is needed for it
    async def dependency(caller: AnyCaller) -> Caller:
        check_scope(caller, scope)
        return caller

    return Depends(dependency)


def check_scope(caller: Caller, scope: Scope) -> None:
    """Raises ApiError (403)."""
    if not caller.may(scope):
        raise ApiError(
            403,
            f"This API key lacks the scope {scope.value!r}. Use one that has it.",
            code="missing_scope",
            type="permission_error",
        )


async def known_caller(request: Request, scope: Scope) -> tuple[Api, Caller]:
    """For a handler that is asked so often that FastAPI shall not look for its parameters."""
    api = await _api_of(request)
    caller = await _caller_of(request, api, await _bearer(request))
    check_scope(caller, scope)
    return api, caller


FilesReader = Annotated[Caller, _with(Scope.FILES_READ)]
FilesWriter = Annotated[Caller, _with(Scope.FILES_WRITE)]
BatchesReader = Annotated[Caller, _with(Scope.BATCHES_READ)]
BatchesWriter = Annotated[Caller, _with(Scope.BATCHES_WRITE)]
WebhooksReader = Annotated[Caller, _with(Scope.WEBHOOKS_READ)]
WebhooksWriter = Annotated[Caller, _with(Scope.WEBHOOKS_WRITE)]
Admin = Annotated[Caller, _with(Scope.ADMIN)]
Operator = Annotated[Caller, _with(Scope.OPERATOR)]


def tenants_of(caller: Caller, *, all_tenants: bool) -> str | None:
    """Whose things are asked for: the caller's own, or with `operator` those of all (None)."""
    if not all_tenants:
        return caller.tenant_id
    check_scope(caller, Scope.OPERATOR)
    return None


def is_id(text: str) -> bool:
    """Whether this can be an id at all."""
    return _ID.fullmatch(text) is not None
