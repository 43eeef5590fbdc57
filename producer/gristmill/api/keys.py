"""/v1/api_keys: keys of the caller's own tenant, for keys with the scope `admin`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from sqlalchemy import Connection

from gristmill.api.access import DEFAULT_SCOPES, Caller, Claim, Scope
from gristmill.api.bodies import documented, json_body
from gristmill.api.context import Admin, Api, UseApi, check_scope, is_id
from gristmill.api.failures import not_found, refused
from gristmill.api.key_text import KeyText
from gristmill.api.lookup import find, list_page
from gristmill.api.objects import ListObject
from gristmill.api.resent import IdempotencyKey, Named, first_made, key_reused, named
from gristmill.ledger import tenants
from gristmill.ledger.tenants import ApiKey

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/api_keys", tags=["API keys"])

_MAX_TIME = 253402300799
MAX_OVERLAP_S = 90 * 86400


class KeyRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr = Field("", max_length=200)
    scopes: list[Scope] = Field(default_factory=lambda: list(DEFAULT_SCOPES), min_length=1)
    #: Unix seconds.
    expires_at: StrictInt | None = Field(None, ge=0, le=_MAX_TIME)


class RotateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: Both keys are good for so many seconds.
    overlap_s: StrictInt = Field(86400, ge=0, le=MAX_OVERLAP_S)
    #: Of the new key, in Unix seconds; left out, it lives as long as the old one was made for.
    expires_at: StrictInt | None = Field(None, ge=0, le=_MAX_TIME)


class KeyObject(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    scopes: list[str]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None


class NewKeyObject(KeyObject):
    #: Only here, and only now.
    key: str


@router.post("", openapi_extra=documented(KeyRequest))
def create_key(
    api: UseApi,
    caller: Admin,  # known before the body is read
    body: Annotated[KeyRequest, Depends(json_body(KeyRequest))],
    idempotency_key: IdempotencyKey = None,
) -> NewKeyObject:
    """The key itself is in this answer and nowhere else.

    The same `Idempotency-Key` makes no second one: that request is told the id of the first.
    """
    _check_expiry(api, body.expires_at)
    _check_may_grant(caller, body.scopes)
    text, key = api.access.make_key(
        caller.tenant_id,
        name=body.name,
        scopes=tuple(dict.fromkeys(scope.value for scope in body.scopes)),
        expires_at=body.expires_at,
        claim=_only_once(api, caller, named("api_keys", idempotency_key, body.model_dump())),
    )
    log.info("key created tenant=%s key=%s by=%s", key.tenant_id, key.id, caller.key_id)
    return _new_key_object(key, text)


@router.get("")
def list_keys(
    api: UseApi,
    caller: Admin,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ListObject[KeyObject]:
    return list_page(
        api,
        "key",
        after,
        lambda conn: tenants.list_keys(conn, caller.tenant_id, limit=limit, after_id=after),
        KeyObject.model_validate,
    )


@router.post("/{key_id}/rotate", openapi_extra=documented(RotateRequest))
def rotate_key(
    key_id: str,
    api: UseApi,
    caller: Admin,
    body: Annotated[RotateRequest, Depends(json_body(RotateRequest))],
    idempotency_key: IdempotencyKey = None,
) -> NewKeyObject:
    """A new key with the name and scopes of this one, which ends after the overlap.

    The same `Idempotency-Key` makes no second one: that request is told the id of the first.
    """
    key = find(
        api,
        "key",
        key_id,
        lambda conn: tenants.get_key(conn, caller.tenant_id, key_id),
        param="key_id",
    )
    _check_expiry(api, body.expires_at)
    _check_may_grant(caller, key.scopes)
    request = named("rotated_api_keys", idempotency_key, [key.id, body.model_dump()])
    is_first = _only_once(api, caller, request)

    def claim(conn: Connection, new_id: str) -> None:
        is_first(conn, new_id)  # which may be what has ended the key
        current = tenants.get_key(conn, caller.tenant_id, key.id)
        if current is None or not current.is_live(api.clock()):
            raise refused(
                "This key has ended. Make a new one.", param="key_id", code="key_has_ended"
            )

    text, new = api.access.replace_key(
        key, overlap_s=body.overlap_s, expires_at=body.expires_at, claim=claim
    )
    log.info("key rotated tenant=%s key=%s new=%s", key.tenant_id, key.id, new.id)
    return _new_key_object(new, text)


@router.delete("/{key_id}")
def revoke_key(key_id: str, api: UseApi, caller: Admin) -> KeyObject:
    """It is refused everywhere within seconds."""
    key = None
    if is_id(key_id):
        with api.ledger.write() as conn:
            if tenants.revoke_key(conn, caller.tenant_id, key_id, now=api.now):
                key = tenants.get_key(conn, caller.tenant_id, key_id)
    if key is None:
        raise not_found("key", key_id, param="key_id")
    log.info("key revoked tenant=%s key=%s by=%s", caller.tenant_id, key.id, caller.key_id)
    return KeyObject.model_validate(key)


def _only_once(api: Api, caller: Caller, request: Named | None) -> Claim:
    """Raises ApiError for a request that has made its key: nobody can tell its text again."""

    def claim(conn: Connection, key_id: str) -> None:
        first_id = first_made(conn, caller.tenant_id, request, key_id, now=api.now)
        if first_id != key_id:
            why = "before, and its text was in that answer alone: revoke it"
            raise key_reused(first_id, why=why)

    return claim


def _check_expiry(api: Api, expires_at: int | None) -> None:
    if expires_at is not None and expires_at <= api.now:
        raise refused("This time is over. Name a later one.", param="expires_at")


def _check_may_grant(caller: Caller, scopes: Iterable[str]) -> None:
    """Nobody gets more from a key than its maker has. Raises ApiError (403)."""
    for scope in scopes:
        check_scope(caller, Scope(scope))


def _new_key_object(key: ApiKey, text: KeyText) -> NewKeyObject:
    return NewKeyObject(**KeyObject.model_validate(key).model_dump(), key=str(text))
