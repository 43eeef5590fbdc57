"""Queries about the audit log: who changed what, when, with which key. Entries never change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, insert

from gristmill.ledger.oldest import remove_oldest
from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema_account import audit_events


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """`action` is a route, as `DELETE /v1/files/{file_id}`, or a command.

    `key_id` is null for what an operator did on the command line.
    """

    id: str
    tenant_id: str
    action: str
    object_id: str
    created_at: int
    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None
    details: Mapping[str, Any] | None = None


def record(conn: Connection, event: AuditEvent) -> None:
    conn.execute(insert(audit_events).values(**asdict(event)))


def list_page(
    conn: Connection, tenant_id: str | None, *, limit: int, after_id: str | None = None
) -> Page[AuditEvent] | None:
    """The newest first, of one tenant or, for an operator, of all (None).

    None when there is no entry `after_id`.
    """
    of = () if tenant_id is None else (audit_events.c.tenant_id == tenant_id,)
    return read_page(
        conn, audit_events, lambda row: AuditEvent(**row), of=of, limit=limit, after_id=after_id
    )


def remove_older(conn: Connection, *, created_before: int, limit: int) -> int:
    """Of all tenants, the oldest first; how many."""
    age = audit_events.c.created_at
    return remove_oldest(conn, audit_events, age, before=created_before, limit=limit)
