"""Writes into the audit log what an operator has done on the command line."""

from __future__ import annotations

import time
from typing import Any

from gristmill.ledger import audit
from gristmill.ledger.audit import AuditEvent
from gristmill.ledger.ids import new_id
from gristmill.ledger.ledger import Ledger


def record_command(
    ledger: Ledger, tenant_id: str, command: str, object_id: str, **details: Any
) -> None:
    """`command` without the program's name, as `keys create`."""
    now = time.time()
    event = AuditEvent(
        id=new_id("audit_", now),
        tenant_id=tenant_id,
        action=f"gristmill {command}",
        object_id=object_id,
        created_at=int(now),
        details=details or None,
    )
    with ledger.write() as conn:
        audit.record(conn, event)
