"""/v1/audit_events: who changed what, when, with which key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from gristmill.api.context import Admin, UseApi, is_id, tenants_of
from gristmill.api.failures import not_found
from gristmill.api.objects import ListObject, list_object
from gristmill.ledger import audit

router = APIRouter(prefix="/v1/audit_events", tags=["Tenants"])


class AuditEventObject(BaseModel):
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
    page = None
    if after is None or is_id(after):
        with api.ledger.read() as conn:
            page = audit.list_page(conn, tenant_id, limit=limit, after_id=after)
    if page is None:
        raise not_found("audit event", after or "", param="after")
    objects = [
        AuditEventObject(
            id=event.id,
            created_at=event.created_at,
            tenant_id=event.tenant_id,
            action=event.action,
            object_id=event.object_id,
            key_id=event.key_id,
            address=event.address,
            request_id=event.request_id,
            details=None if event.details is None else dict(event.details),
        )
        for event in page.items
    ]
    return list_object(objects, [event.id for event in page.items], has_more=page.has_more)
