"""A client whose service is a function, and whose waiting takes no time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from gristmill.client import AsyncClient, Client

Answer = Callable[[httpx2.Request], httpx2.Response]


@dataclass
class Stage:
    """`answers` are given one after the other; the last one again and again."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[httpx2.Request] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        return self._next(request)

    async def answer_async(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        return self._next(request)

    def _next(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        made = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return made(request)

    def client(self, **options: Any) -> Client:
        http = httpx2.Client(transport=httpx2.MockTransport(self.answer), follow_redirects=True)
        client = Client(
            **{"api_key": "gm_key", "base_url": "http://mill/v1", "http_client": http, **options}
        )
        client._driver._sleep = self.waits.append
        return client

    def async_client(self, **options: Any) -> AsyncClient:
        transport = httpx2.MockTransport(self.answer_async)
        http = httpx2.AsyncClient(transport=transport, follow_redirects=True)
        client = AsyncClient(
            **{"api_key": "gm_key", "base_url": "http://mill/v1", "http_client": http, **options}
        )

        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            await asyncio.sleep(0)

        client._driver._sleep = sleep
        return client


def says(document: object, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda request: httpx2.Response(status, json=document, headers=named)


def refuses(status: int, code: str = "some_code", **headers: str) -> Answer:
    error = {"message": "said the test", "type": "a_type", "param": "a_param", "code": code}
    return says({"error": error}, status, **headers)


def breaks(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("nobody listens")


def batch(batch_id: str = "batch_1", status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"id": batch_id, "object": "batch", "status": status, **fields}


def sent(request: httpx2.Request) -> Any:
    return json.loads(request.content)
