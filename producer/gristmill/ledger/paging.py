"""Lists page by page: by creation time, then id, read on behind the row that a caller names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, and_, or_, select

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    items: list[Item]
    has_more: bool


def read_page(
    conn: Connection,
    table: Table,
    make: Callable[[RowMapping], Item],
    *,
    of: Iterable[ColumnElement[bool]],
    shown: Iterable[ColumnElement[bool]] = (),
    limit: int,
    after_id: str | None,
    newest_first: bool = True,
) -> Page[Item] | None:
    """At most `limit` of the rows for which `of` and `shown` hold, behind that with `after_id`.

    Which need not be shown any more. None when there is none for which `of` holds.
    """
    query = select(table).where(*of)
    if after_id is not None:
        named = conn.execute(query.where(table.c.id == after_id)).mappings().one_or_none()
        if named is None:
            return None
        query = query.where(_after(table, named, newest_first=newest_first))
    by = (table.c.created_at, table.c.id)
    query = query.where(*shown).order_by(*(c.desc() if newest_first else c for c in by))
    rows = conn.execute(query.limit(limit + 1)).mappings().all()
    return Page([make(row) for row in rows[:limit]], len(rows) > limit)


def _after(table: Table, row: RowMapping, *, newest_first: bool) -> ColumnElement[bool]:
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
