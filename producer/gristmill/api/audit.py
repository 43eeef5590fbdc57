"""/v1/audit_events: who changed what, when, with which key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from gristmill.api.context import Admin, UseApi, tenants_of
from gristmill.api.lookup import list_page
from gristmill.api.objects import ListObject
from gristmill.ledger import audit

router = APIRouter(prefix="/v1/audit_events", tags=["Tenants"])


class AuditEventObject(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    object: Literal["audit_event"] = "audit_event"
    created_at: int
    tenant_id: str
    #: The route, as `DELETE /v1/files/{file_id}`, or the command of an operator.
    action: str
    object_id: str
    #: The public part of the key; null for a command.
    key_id: str | None
    address: str | None
    request_id: str | None
    details: dict[str, Any] | None


@router.get("")
def list_audit_events(
    api: UseApi,
    caller: Admin,
    after: Annotated[str | None, Query(description="The id of the last entry seen.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    all_tenants: Annotated[bool, Query(description="With the scope `operator`.")] = False,
) -> ListObject[AuditEventObject]:
    """The newest first."""
    tenant_id = tenants_of(caller, all_tenants=all_tenants)
    return list_page(
        api,
        "audit event",
        after,
        lambda conn: audit.list_page(conn, tenant_id, limit=limit, after_id=after),
        AuditEventObject.model_validate,
    )
