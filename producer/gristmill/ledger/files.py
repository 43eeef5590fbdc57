"""Queries about files; their bytes lie in the Store."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select

from gristmill.ledger.schema import files


@dataclass(frozen=True, slots=True)
class File:
    id: str
    tenant_id: str
    purpose: str
    filename: str
    num_bytes: int
    created_at: int


def add(conn: Connection, file: File) -> None:
    conn.execute(insert(files).values(**asdict(file)))


def get(conn: Connection, tenant_id: str, file_id: str) -> File | None:
    query = select(files).where(files.c.id == file_id, files.c.tenant_id == tenant_id)
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else File(**row)
