"""`client.models` and `client.keys`: what can be asked, and by whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack
from urllib.parse import quote

from gristmill.client.calls import Caller
from gristmill.client.drive import AsyncDriver, SyncDriver
from gristmill.client.files import checked_id
from gristmill.client.objects import ApiKey, Model, PageContent
from gristmill.client.options import CallOptions
from gristmill.client.pages import AsyncPaginator, SyncPage
from gristmill.client.steps import Steps


@dataclass(frozen=True, slots=True)
class ModelCalls:
    caller: Caller

    def retrieve(self, model: str, call: CallOptions) -> Steps[Model]:
        return self.caller.one(
            Model, self.caller.request("GET", f"/models/{quote(model)}", call=call)
        )

    def list(self, call: CallOptions) -> Steps[PageContent[Model]]:
        return self.caller.page(Model, self.caller.request("GET", "/models", call=call))


class Models:
    def __init__(self, calls: ModelCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def retrieve(self, model: str, **options: Unpack[CallOptions]) -> Model:
        return self._driver.run(self._calls.retrieve(model, options))

    def list(self, **options: Unpack[CallOptions]) -> SyncPage[Model]:
        return SyncPage(self._driver.run(self._calls.list(options)), self._driver)


class AsyncModels:
    def __init__(self, calls: ModelCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    async def retrieve(self, model: str, **options: Unpack[CallOptions]) -> Model:
        return await self._driver.run(self._calls.retrieve(model, options))

    def list(self, **options: Unpack[CallOptions]) -> AsyncPaginator[Model]:
        return AsyncPaginator(self._calls.list(options), self._driver)


@dataclass(frozen=True, slots=True)
class KeyCalls:
    caller: Caller

    def create(self, body: Mapping[str, object], call: CallOptions) -> Steps[ApiKey]:
        given = {name: value for name, value in body.items() if value is not None}
        return self._made("/api_keys", given, call)

    def list(self, query: Mapping[str, object], call: CallOptions) -> Steps[PageContent[ApiKey]]:
        return self.caller.page(
            ApiKey, self.caller.request("GET", "/api_keys", query=query, call=call)
        )

    def rotate(self, key_id: str, body: Mapping[str, object], call: CallOptions) -> Steps[ApiKey]:
        return self._made(f"/api_keys/{checked_id(key_id)}/rotate", body, call)

    def _made(self, path: str, body: Mapping[str, object], call: CallOptions) -> Steps[ApiKey]:
        """Never tried twice: the key of a reply that was lost stays valid, and nobody knows it."""
        request = self.caller.request("POST", path, body=body, call=call)
        return self.caller.one(ApiKey, replace(request, is_repeatable=False))

    def revoke(self, key_id: str, call: CallOptions) -> Steps[ApiKey]:
        return self.caller.one(
            ApiKey, self.caller.request("DELETE", f"/api_keys/{checked_id(key_id)}", call=call)
        )


class Keys:
    """For keys with the scope `admin`: those of their own tenant."""

    def __init__(self, calls: KeyCalls, driver: SyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    def create(
        self,
        *,
        name: str = "",
        scopes: Sequence[str] | None = None,
        expires_at: int | None = None,
        **options: Unpack[CallOptions],
    ) -> ApiKey:
        """The key itself is in `key` of what comes back, and nowhere else, ever.

        Not tried again when the reply is lost: then look at `list` whether there is one to revoke.
        """
        body = {"name": name, "scopes": scopes, "expires_at": expires_at}
        return self._driver.run(self._calls.create(body, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> SyncPage[ApiKey]:
        query = {"after": after, "limit": limit}
        return SyncPage(self._driver.run(self._calls.list(query, options)), self._driver)

    def rotate(
        self, key_id: str, *, overlap_s: int = 86400, **options: Unpack[CallOptions]
    ) -> ApiKey:
        """A new key in place of this one, which ends after `overlap_s` seconds."""
        return self._driver.run(self._calls.rotate(key_id, {"overlap_s": overlap_s}, options))

    def revoke(self, key_id: str, **options: Unpack[CallOptions]) -> ApiKey:
        """It is refused everywhere within seconds."""
        return self._driver.run(self._calls.revoke(key_id, options))


class AsyncKeys:
    def __init__(self, calls: KeyCalls, driver: AsyncDriver) -> None:
        self._calls = calls
        self._driver = driver

    async def create(
        self,
        *,
        name: str = "",
        scopes: Sequence[str] | None = None,
        expires_at: int | None = None,
        **options: Unpack[CallOptions],
    ) -> ApiKey:
        body = {"name": name, "scopes": scopes, "expires_at": expires_at}
        return await self._driver.run(self._calls.create(body, options))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPaginator[ApiKey]:
        query = {"after": after, "limit": limit}
        return AsyncPaginator(self._calls.list(query, options), self._driver)

    async def rotate(
        self, key_id: str, *, overlap_s: int = 86400, **options: Unpack[CallOptions]
    ) -> ApiKey:
        return await self._driver.run(self._calls.rotate(key_id, {"overlap_s": overlap_s}, options))

    async def revoke(self, key_id: str, **options: Unpack[CallOptions]) -> ApiKey:
        return await self._driver.run(self._calls.revoke(key_id, options))
