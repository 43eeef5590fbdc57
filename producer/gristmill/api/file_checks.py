"""Uploads that are read at once as a batch of them would be, when that is asked: `validate_for`.

The check is an estimate, made by the control side; the file shows what became of it.
"""

from __future__ import annotations

from sqlalchemy import Connection

from gristmill.api.context import Api
from gristmill.api.failures import too_many
from gristmill.api.objects import FileObject, file_object
from gristmill.control.estimate import LIFETIME_S
from gristmill.ledger import estimates
from gristmill.ledger.estimates import Estimate, EstimateStatus
from gristmill.ledger.files import File
from gristmill.types import Endpoint

__all__ = ["check_of", "check_room_for_estimate", "show", "show_all"]

#: Of one tenant, since each takes CPU time.
_MAX_OPEN = 10
_RETRY_S = 15.0


def check_room_for_estimate(conn: Connection, tenant_id: str) -> None:
    """Raises ApiError (429) when enough of the tenant's files are being read."""
    if estimates.count_open(conn, tenant_id) >= _MAX_OPEN:
        raise too_many(
            f"{_MAX_OPEN} estimates are being made for this tenant. Wait for one of them.",
            kind="estimates",
            wait_s=_RETRY_S,
        )


def check_of(file: File, endpoint: Endpoint) -> Estimate:
    """What is to be made of a file when it is uploaded; to be found by the file's id."""
    return Estimate(
        id=_id_of(file),
        tenant_id=file.tenant_id,
        status=EstimateStatus.QUEUED,
        input_file_id=file.id,
        endpoint=endpoint,
        model_name="",
        created_at=file.created_at,
        expires_at=file.created_at + LIFETIME_S,
    )


def show(api: Api, file: File) -> FileObject:
    with api.ledger.read() as conn:
        (shown,) = show_all(conn, [file], now=api.now).values()
    return shown


def show_all(conn: Connection, found: list[File], *, now: int) -> dict[str, FileObject]:
    """Files of one tenant by their ids, each with what its check says, as long as that is kept."""
    if not found:
        return {}
    ids = [_id_of(file) for file in found]
    checks = estimates.get_all(conn, found[0].tenant_id, ids, now=now)
    return {file.id: file_object(file, checks.get(_id_of(file))) for file in found}


def _id_of(file: File) -> str:
    return f"est_{file.id.removeprefix('file-')}"
