"""Pages of a list, as the openai package has them: iterating goes on over all pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Generic

from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.objects import Object, PageContent
from gristmill.client.steps import Steps


class SyncPage(Generic[Object]):
    """`for one in page` asks for further pages as it comes to them; `data` is this one's."""

    def __init__(self, content: PageContent[Object], driver: SyncDriver) -> None:
        self._content = content
        self._driver = driver

    @property
    def data(self) -> list[Object]:
        return self._content.data

    @property
    def has_more(self) -> bool:
        return self._content.has_more

    def has_next_page(self) -> bool:
        return self._content.next is not None

    def get_next_page(self) -> SyncPage[Object]:
        return SyncPage(self._driver.run(_next_of(self._content)), self._driver)

    def __iter__(self) -> Iterator[Object]:
        page = self
        yield from page.data
        while page.has_next_page():
            page = page.get_next_page()
            yield from page.data


class AsyncPage(Generic[Object]):
    """The same, with `async for` and `await page.get_next_page()`."""

    def __init__(self, content: PageContent[Object], driver: AsyncDriver) -> None:
        self._content = content
        self._driver = driver

    @property
    def data(self) -> list[Object]:
        return self._content.data

    @property
    def has_more(self) -> bool:
        return self._content.has_more

    def has_next_page(self) -> bool:
        return self._content.next is not None

    async def get_next_page(self) -> AsyncPage[Object]:
        return AsyncPage(await self._driver.run(_next_of(self._content)), self._driver)

    async def __aiter__(self) -> AsyncIterator[Object]:
        page = self
        while True:
            for one in page.data:
                yield one
            if not page.has_next_page():
                return
            page = await page.get_next_page()


class AsyncPaginator(Generic[Object]):
    """What an async `list` gives: `await` it for its first page, or `async for` over all."""

    def __init__(self, steps: Steps[PageContent[Object]], driver: AsyncDriver) -> None:
        self._steps = steps
        self._driver = driver

    def __await__(self) -> Generator[Any, Any, AsyncPage[Object]]:
        return self._first().__await__()

    async def __aiter__(self) -> AsyncIterator[Object]:
        async for one in await self._first():
            yield one

    async def _first(self) -> AsyncPage[Object]:
        return AsyncPage(await self._driver.run(self._steps), self._driver)


def _next_of(content: PageContent[Object]) -> Steps[PageContent[Object]]:
    if content.next is None:
        raise RuntimeError("This is the last page. Ask has_next_page() first.")
    return content.next()
