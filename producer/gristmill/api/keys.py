"""/v1/api_keys: keys of the caller's own tenant, for keys with the scope `admin`."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from gristmill.api.access import DEFAULT_SCOPES, Scope
from gristmill.api.bodies import documented, json_body
from gristmill.api.context import Admin, UseApi, is_id
from gristmill.api.failures import not_found, refused
from gristmill.api.objects import ListObject, list_object
from gristmill.ledger import tenants
from gristmill.ledger.tenants import ApiKey

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/api_keys", tags=["API keys"])

_MAX_TIME = 253402300799


class KeyRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr = Field("", max_length=200)
    scopes: list[Scope] = Field(default_factory=lambda: list(DEFAULT_SCOPES), min_length=1)
    #: Unix seconds.
    expires_at: StrictInt | None = Field(None, ge=0, le=_MAX_TIME)


class KeyObject(BaseModel):
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
) -> NewKeyObject:
    """The key itself is in this answer and nowhere else."""
    if body.expires_at is not None and body.expires_at <= api.now:
        raise refused("This time is over. Name a later one.", param="expires_at")
    text, key = api.access.make_key(
        caller.tenant_id,
        name=body.name,
        scopes=tuple(dict.fromkeys(scope.value for scope in body.scopes)),
        expires_at=body.expires_at,
    )
    log.info("key created tenant=%s key=%s by=%s", key.tenant_id, key.id, caller.key_id)
    return NewKeyObject(**_key_object(key).model_dump(), key=str(text))


@router.get("")
def list_keys(
    api: UseApi,
    caller: Admin,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ListObject[KeyObject]:
    page = None
    if after is None or is_id(after):
        with api.ledger.read() as conn:
            page = tenants.list_keys(conn, caller.tenant_id, limit=limit, after_id=after)
    if page is None:
        raise not_found("key", after or "", param="after")
    objects = [_key_object(key) for key in page.items]
    return list_object(objects, [key.id for key in page.items], has_more=page.has_more)


@router.delete("/{key_id}")
def revoke_key(key_id: str, api: UseApi, caller: Admin) -> KeyObject:
    """It is refused everywhere within seconds."""
    key = None
    if is_id(key_id):
        with api.ledger.write() as conn:
            if tenants.revoke_key(conn, caller.tenant_id, key_id, now=api.now):
                key = tenants.find_key(conn, key_id)
    if key is None:
        raise not_found("key", key_id, param="key_id")
    log.info("key revoked tenant=%s key=%s by=%s", caller.tenant_id, key.id, caller.key_id)
    return _key_object(key)


def _key_object(key: ApiKey) -> KeyObject:
    return KeyObject(
        id=key.id,
        name=key.name,
        scopes=list(key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
    )
