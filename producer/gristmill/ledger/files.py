"""Queries about files; their bytes lie in the Store. A deleted one keeps its place in lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import ColumnElement, Connection, insert, or_, select, update

from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema import batches, files
from gristmill.ledger.status import BatchStatus


@dataclass(frozen=True, slots=True)
class File:
    id: str
    tenant_id: str
    purpose: str
    filename: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None
    deleted_at: int | None = None
    #: In hex.
    sha256: str | None = None


#: What an upload expires at until it is complete: nobody sees it, and the sweep leaves it be.
UPLOADING = 0
#: What is not complete after so long never will be.
MAX_UPLOAD_S = 24 * 3600


def add(conn: Connection, file: File) -> None:
    conn.execute(insert(files).values(**asdict(file)))


def begin_upload(conn: Connection, file: File) -> None:
    """Its bytes are about to be in the Store. Without `complete_upload` the sweep removes them."""
    add(conn, replace(file, expires_at=UPLOADING))


def complete_upload(conn: Connection, file: File) -> bool:
    """From now on the file is there. False when the sweep has given it up."""
    statement = update(files).where(
        files.c.tenant_id == file.tenant_id, files.c.id == file.id, files.c.deleted_at.is_(None)
    )
    changed = conn.execute(statement.values(num_bytes=file.num_bytes, expires_at=file.expires_at))
    return changed.rowcount == 1


def get(
    conn: Connection, tenant_id: str, file_id: str, *, now: int = 0, for_update: bool = False
) -> File | None:
    """None for one that is deleted, or has expired by `now`."""
    query = select(files).where(
        files.c.tenant_id == tenant_id, files.c.id == file_id, *_is_there(now)
    )
    row = conn.execute(query.with_for_update() if for_update else query).mappings().one_or_none()
    return None if row is None else File(**row)


def list_page(
    conn: Connection,
    tenant_id: str,
    *,
    now: int,
    limit: int,
    after_id: str | None = None,
    purpose: str | None = None,
    newest_first: bool = True,
) -> Page[File] | None:
    """The next files of a tenant; None when it never had one with the id `after_id`."""
    of_purpose = () if purpose is None else (files.c.purpose == purpose,)
    return read_page(
        conn,
        files,
        lambda row: File(**row),
        of=(files.c.tenant_id == tenant_id,),
        shown=(*_is_there(now), *of_purpose),
        limit=limit,
        after_id=after_id,
        newest_first=newest_first,
    )


def is_being_read(conn: Connection, tenant_id: str, file_id: str) -> bool:
    """Whether a batch still has to read the file, for its rows or for which of them to run."""
    query = select(batches.c.id).where(
        batches.c.tenant_id == tenant_id,
        or_(batches.c.input_file_id == file_id, batches.c.retry_file_id == file_id),
        batches.c.status == BatchStatus.VALIDATING,
        batches.c.freeze_reason.is_(None),
    )
    return conn.execute(query.limit(1)).first() is not None


def expire(conn: Connection, tenant_id: str, file_id: str, *, now: int) -> None:
    """Nobody may read the file from now on; the sweep removes it, if its caller does not."""
    statement = update(files).where(files.c.tenant_id == tenant_id, files.c.id == file_id)
    conn.execute(statement.values(expires_at=now))


def delete(conn: Connection, tenant_id: str, file_id: str, *, now: int) -> bool:
    """Its bytes are gone. False when there is none. What its owner called it is forgotten too."""
    statement = update(files).where(
        files.c.tenant_id == tenant_id, files.c.id == file_id, files.c.deleted_at.is_(None)
    )
    return conn.execute(statement.values(deleted_at=now, filename="")).rowcount == 1


def list_expired(conn: Connection, *, now: int, limit: int = 100) -> Sequence[File]:
    """Files of all tenants that nobody may read any more: for the sweep, never for a caller."""
    query = select(files).where(
        files.c.deleted_at.is_(None),
        files.c.expires_at <= now,
        or_(files.c.expires_at != UPLOADING, files.c.created_at <= now - MAX_UPLOAD_S),
    )
    rows = conn.execute(query.order_by(files.c.expires_at).limit(limit)).mappings()
    return [File(**row) for row in rows]


def _is_there(now: int) -> tuple[ColumnElement[bool], ...]:
    return (
        files.c.deleted_at.is_(None),
        or_(files.c.expires_at.is_(None), files.c.expires_at > now),
    )
