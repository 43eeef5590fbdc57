"""Runs Steps over HTTP: once blocking, once async. No decision is made here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import httpx2

from gristmill.client.errors import APIConnectionError, APITimeoutError
from gristmill.client.options import CONNECT_TIMEOUT_S
from gristmill.client.steps import (
    Body,
    Close,
    Fetch,
    Item,
    Pump,
    Read,
    Reply,
    Request,
    Send,
    Sleep,
    Step,
    Steps,
    Work,
)

T = TypeVar("T")


class SyncDriver:
    """Any thread may call any method."""

    def __init__(self, http: httpx2.Client, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.http = http
        self._sleep = sleep

    def run(self, steps: Steps[T]) -> T:
        """What the Steps return."""
        pump = Pump(steps)
        for _ in self._items(pump):
            raise AssertionError("these Steps give items: iterate over them")
        return cast(T, pump.result)

    def iterate(self, steps: Steps[Any]) -> Iterator[Any]:
        """The items that the Steps give."""
        return self._items(Pump(steps))

    def _items(self, pump: Pump[Any]) -> Iterator[Any]:
        streams: list[_Stream] = []
        try:
            while (step := pump.advance()) is not None:
                if isinstance(step, Item):
                    yield step.value
                    continue
                try:
                    pump.answer(self._do(step, streams))
                except Exception as error:  # what to do about it is for the Steps to decide
                    pump.fail(error)
        finally:
            pump.close()
            for stream in streams:
                stream.response.close()

    def _do(self, step: Step, streams: list[_Stream]) -> object:
        match step:
            case Send(request):
                with _translated(request):
                    return _reply(self.http.send(_http_request(self.http, request)))
            case Fetch(request):
                with _translated(request):
                    response = self.http.send(_http_request(self.http, request), stream=True)
                    stream = _Stream(request, response, response.iter_bytes())
                    streams.append(stream)
                    if response.status_code >= 400:
                        response.read()
                return _reply(response, stream)
            case Read(stream):
                with _translated(stream.request):
                    # An empty piece is not the end.
                    return next(filter(None, stream.pieces), b"")
            case Close(stream):
                stream.response.close()
                streams.remove(stream)
            case Sleep(seconds):
                self._sleep(seconds)
            case Work(function):
                return function()
        return None


class AsyncDriver:
    """The same for asyncio. What blocks runs in a thread."""

    def __init__(
        self, http: httpx2.AsyncClient, *, sleep: Callable[[float], Any] = asyncio.sleep
    ) -> None:
        self.http = http
        self._sleep = sleep

    async def run(self, steps: Steps[T]) -> T:
        pump = Pump(steps)
        async for _ in self._items(pump):
            raise AssertionError("these Steps give items: iterate over them")
        return cast(T, pump.result)

    def iterate(self, steps: Steps[Any]) -> AsyncIterator[Any]:
        return self._items(Pump(steps))

    async def _items(self, pump: Pump[Any]) -> AsyncIterator[Any]:
        streams: list[_Stream] = []
        try:
            while (step := pump.advance()) is not None:
                if isinstance(step, Item):
                    yield step.value
                    continue
                try:
                    pump.answer(await self._do(step, streams))
                except Exception as error:  # what to do about it is for the Steps to decide
                    pump.fail(error)
        finally:
            pump.close()
            for stream in streams:
                await stream.response.aclose()

    async def _do(self, step: Step, streams: list[_Stream]) -> object:
        match step:
            case Send(request):
                with _translated(request):
                    return _reply(await self.http.send(_http_request(self.http, request)))
            case Fetch(request):
                with _translated(request):
                    sent = _http_request(self.http, request)
                    response = await self.http.send(sent, stream=True)
                    stream = _Stream(request, response, response.aiter_bytes())
                    streams.append(stream)
                    if response.status_code >= 400:
                        await response.aread()
                return _reply(response, stream)
            case Read(stream):
                with _translated(stream.request):
                    while (piece := await anext(stream.pieces, None)) == b"":
                        pass  # an empty piece is not the end
                    return piece or b""
            case Close(stream):
                await stream.response.aclose()
                streams.remove(stream)
            case Sleep(seconds):
                await self._sleep(seconds)
            case Work(function):
                return await asyncio.to_thread(function)
        return None


class _Stream:
    """A body on its way."""

    def __init__(self, request: Request, response: httpx2.Response, pieces: Any) -> None:
        self.request = request
        self.response = response
        self.pieces = pieces


def _http_request(http: httpx2.Client | httpx2.AsyncClient, request: Request) -> httpx2.Request:
    content: Any = request.content
    if content is not None and not isinstance(content, bytes):
        is_async = isinstance(http, httpx2.AsyncClient)
        content = _async_chunks(content) if is_async else content.chunks()
    return http.build_request(
        request.method,
        request.url,
        headers=dict(request.headers),
        params=dict(request.query) or None,
        content=content,
        timeout=http_timeout(request.timeout),
    )


async def _async_chunks(body: Body) -> AsyncIterator[bytes]:
    chunks = body.chunks()
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def http_timeout(timeout: float | httpx2.Timeout | None) -> httpx2.Timeout:
    """Seconds are for a whole answer; a connection must be there sooner."""
    if isinstance(timeout, httpx2.Timeout):
        return timeout
    if timeout is None:
        return httpx2.Timeout(None)
    return httpx2.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT_S))


def _reply(response: httpx2.Response, stream: _Stream | None = None) -> Reply:
    body = response.content if stream is None or response.status_code >= 400 else b""
    return Reply(response.status_code, response.headers, body, stream)


@contextmanager
def _translated(request: Request) -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException as error:
        raise APITimeoutError(
            f"{request.url} took longer than the timeout ({type(error).__name__}).",
            request=request,
        ) from error
    except httpx2.TransportError as error:
        said = str(error) or type(error).__name__
        raise APIConnectionError(
            f"The connection to {request.url} failed: {said}. Is the service running there?",
            request=request,
        ) from error
