"""Removes the oldest rows of a table, of all tenants, so many at a time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Table, delete, select, tuple_


def remove_oldest(
    conn: Connection, table: Table, age: Column[Any], *, before: int, limit: int
) -> int:
    """The rows whose time in the column `age` is earlier than `before`; how many."""
    key = tuple(table.primary_key)
    is_old = age < before
    oldest = select(*key).where(is_old).order_by(age).limit(limit)
    # Asked twice: meanwhile somebody else may have written a row anew.
    removed = conn.execute(delete(table).where(tuple_(*key).in_(oldest), is_old))
    return removed.rowcount
