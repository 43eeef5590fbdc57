"""/v1/tenants: quotas, and what is in use of them. A tenant sees its own, an operator all."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from sqlalchemy import Connection

from gristmill.api.access import Scope
from gristmill.api.bodies import documented, json_body
from gristmill.api.context import AnyCaller, Api, Operator, UseApi, is_id
from gristmill.api.failures import not_found
from gristmill.api.objects import ListObject, list_object
from gristmill.ledger import quotas
from gristmill.ledger.quotas import Tenant
from gristmill.quotas import Quotas, quotas_of

router = APIRouter(prefix="/v1/tenants", tags=["Tenants"])

_MAX_LIMIT = 2**62

#: A number, `none` for no limit, `default` for that of the service.
QuotaValue = Annotated[StrictInt, Field(ge=0, le=_MAX_LIMIT)] | Literal["none", "default"]


class QuotasRequest(BaseModel):
    """What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    requests_per_min: QuotaValue | None = None
    batches_in_flight: QuotaValue | None = None
    rows_per_batch: QuotaValue | None = None
    rows_in_flight: QuotaValue | None = None
    queued_tokens: QuotaValue | None = None
    stored_bytes: QuotaValue | None = None


class InUseObject(BaseModel):
    batches_in_flight: int
    rows_in_flight: int
    queued_tokens: int
    stored_bytes: int


class TenantObject(BaseModel):
    id: str
    object: Literal["tenant"] = "tenant"
    created_at: int
    #: Null is no limit.
    quotas: Quotas
    #: Those that are the tenant's own, and not the service's defaults.
    own_quotas: list[str]


class TenantInUseObject(TenantObject):
    in_use: InUseObject


@router.get("")
def list_tenants(
    api: UseApi,
    caller: Operator,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ListObject[TenantObject]:
    """By name."""
    found: list[Tenant] | None = None
    if after is None or is_id(after):
        with api.ledger.read() as conn:
            found = quotas.list_tenants(conn, limit=limit + 1, after_id=after or "")
    if found is None:
        raise not_found("tenant", after or "", param="after")
    objects = [_tenant_object(api, tenant) for tenant in found[:limit]]
    return list_object(objects, [one.id for one in objects], has_more=len(found) > limit)


@router.get("/{tenant_id}")
def retrieve_tenant(tenant_id: str, api: UseApi, caller: AnyCaller) -> TenantInUseObject:
    """Its quotas, and what is in use of them. Any key may look at its own tenant."""
    tenant = None
    if is_id(tenant_id) and (tenant_id == caller.tenant_id or caller.may(Scope.OPERATOR)):
        with api.ledger.read() as conn:
            tenant = quotas.get(conn, tenant_id)
            if tenant is not None:
                return _in_use_object(api, conn, tenant)
    raise not_found("tenant", tenant_id, param="tenant_id")


@router.post("/{tenant_id}", openapi_extra=documented(QuotasRequest))
def set_quotas(
    tenant_id: str,
    request: Request,
    api: UseApi,
    caller: Operator,  # known before the body is read
    body: Annotated[QuotasRequest, Depends(json_body(QuotasRequest))],
) -> TenantInUseObject:
    """Give a tenant quotas of its own. They hold in all API processes within seconds."""
    values: dict[str, Any] = body.model_dump(exclude_none=True)
    request.state.audit_details = values
    if is_id(tenant_id):
        with api.ledger.write() as conn:
            tenant = quotas.set_own(conn, tenant_id, **split_quotas(values))
            if tenant is not None:
                return _in_use_object(api, conn, tenant)
    raise not_found("tenant", tenant_id, param="tenant_id")


def split_quotas(values: dict[str, Any]) -> dict[str, Any]:
    """Quotas as callers write them, as `quotas.set_own` takes them."""
    return {
        "changes": {n: None if v == "none" else v for n, v in values.items() if v != "default"},
        "defaults": {name for name, value in values.items() if value == "default"},
    }


def _tenant_object(api: Api, tenant: Tenant) -> TenantObject:
    return TenantObject(
        id=tenant.tenant_id,
        created_at=tenant.created_at,
        quotas=quotas_of(api.settings, tenant.own),
        own_quotas=sorted(tenant.own),
    )


def _in_use_object(api: Api, conn: Connection, tenant: Tenant) -> TenantInUseObject:
    return TenantInUseObject(
        **_tenant_object(api, tenant).model_dump(),
        in_use=InUseObject(
            batches_in_flight=quotas.count_batches(conn, tenant.tenant_id),
            rows_in_flight=quotas.count_rows(conn, tenant.tenant_id),
            queued_tokens=quotas.count_tokens(conn, tenant.tenant_id),
            stored_bytes=quotas.count_bytes(conn, tenant.tenant_id),
        ),
    )
