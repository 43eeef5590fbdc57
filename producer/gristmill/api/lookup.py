"""How handlers come to what a caller names: a thing by its id, a page of a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from gristmill.api.context import Api, is_id
from gristmill.api.failures import not_found
from gristmill.api.objects import Item, ListObject, list_object
from gristmill.ledger.paging import Page

Found = TypeVar("Found")


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Listed = TypeVar("Listed", bound=_Named)


def find(
    api: Api, noun: str, found_id: str, get: Callable[[Connection], Found | None], *, param: str
) -> Found:
    """What `get` reads from the Ledger under this id. Raises ApiError (404) for None."""
    found = None
    if is_id(found_id):
        with api.ledger.read() as conn:
            found = get(conn)
    if found is None:
        raise not_found(noun, found_id, param=param)
    return found


def list_page(
    api: Api,
    noun: str,
    after: str | None,
    read: Callable[[Connection], Page[Listed] | None],
    show: Callable[[Listed], Item],
) -> ListObject[Item]:
    """The page that `read` finds behind the id `after`. Raises ApiError (404) for None."""
    page = None
    if after is None or is_id(after):
        with api.ledger.read() as conn:
            page = read(conn)
    if page is None:
        raise not_found(noun, after or "", param="after")
    ids = [one.id for one in page.items]
    return list_object([show(one) for one in page.items], ids, has_more=page.has_more)
