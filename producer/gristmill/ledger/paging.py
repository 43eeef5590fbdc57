"""Lists page by page: by creation time, then id, read on behind the row that a caller names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, and_, or_

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    items: list[Item]
    has_more: bool


def after(table: Table, row: RowMapping, *, newest_first: bool) -> ColumnElement[bool]:
    """Whether a row of the table comes behind `row`."""
    created_at, row_id = table.c.created_at, table.c.id
    if newest_first:
        return or_(
            created_at < row["created_at"],
            and_(created_at == row["created_at"], row_id < row["id"]),
        )
    return or_(
        created_at > row["created_at"],
        and_(created_at == row["created_at"], row_id > row["id"]),
    )


def read_page(
    conn: Connection, query: Select[Any], table: Table, *, limit: int, newest_first: bool
) -> tuple[Sequence[RowMapping], bool]:
    """At most `limit` rows, and whether there are more."""
    by = (table.c.created_at, table.c.id)
    query = query.order_by(*(column.desc() if newest_first else column for column in by))
    rows = conn.execute(query.limit(limit + 1)).mappings().all()
    return rows[:limit], len(rows) > limit
