"""One call of the API as Steps: its request, its tries, its answer as an object or an error."""

from __future__ import annotations

import json
import logging
import platform
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from gristmill.client.errors import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    status_error,
)
from gristmill.client.objects import Object, PageContent
from gristmill.client.options import CallOptions, Options
from gristmill.client.retry import NOTHING_DONE, delay_s, should_retry
from gristmill.client.steps import Body, Fetch, Reply, Request, Send, Sleep, Steps

log = logging.getLogger("gristmill.client")

USER_AGENT = f"gristmill/{version('gristmill')} python/{platform.python_version()}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Builds requests for one service and key."""

    options: Options

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        content: Body | None = None,
        content_type: str = "",
        accept: str = "application/json",
        call: CallOptions | None = None,
    ) -> Request:
        """`path` begins behind `/v1`. Values of `query` that are None are left out.

        Every POST gets an Idempotency-Key, the same for all its tries.
        """
        call = call or {}
        headers = {
            "accept": accept,
            "authorization": f"Bearer {self.options.api_key}",
            "user-agent": USER_AGENT,
        }
        sent: bytes | Body | None = content
        if content is not None:
            headers |= {"content-type": content_type, "content-length": str(content.num_bytes)}
        elif body is not None:
            document = {**body, **call.get("extra_body", {})}
            sent = json.dumps(document, ensure_ascii=False).encode()
            headers["content-type"] = "application/json"
        if method == "POST":
            headers["idempotency-key"] = str(uuid.uuid4())
        for more in (self.options.default_headers, call.get("extra_headers", {})):
            headers |= {name.lower(): value for name, value in more.items()}
        asked = {k: str(v) for k, v in (query or {}).items() if v is not None}
        return Request(
            method=method,
            url=f"{self.options.base_url}{path}",
            headers=headers,
            query=asked | dict(call.get("extra_query", {})),
            content=sent,
            timeout=call.get("timeout", self.options.timeout),
            max_retries=call.get("max_retries", self.options.max_retries),
        )

    def one(self, kind: type[Object], request: Request) -> Steps[Object]:
        """The object that the answer is."""
        reply = yield from send(request)
        return read_object(kind, reply.body, request, reply)

    def page(self, kind: type[Object], request: Request) -> Steps[PageContent[Object]]:
        """A page of a list that is read on from the id of its last object."""
        reply = yield from send(request)
        try:
            document = json.loads(reply.body)
            listed = [read_object(kind, one, request, reply) for one in document["data"]]
            has_more = bool(document.get("has_more")) and bool(listed)
        except (ValueError, KeyError, TypeError) as error:
            raise _not_ours(f"it is no list: {error!r}", request, reply) from error
        following = None
        if has_more:
            query = {**request.query, "after": str(getattr(listed[-1], "id", ""))}
            following = partial(self.page, kind, replace(request, query=query))
        return PageContent(data=listed, has_more=has_more, next=following)


def send(request: Request) -> Steps[Reply]:
    """The answer, after as many tries as the request allows. Raises APIError."""
    return (yield from _tried(request, Send))


def fetch(request: Request) -> Steps[Reply]:
    """The same, with the body still to be read."""
    return (yield from _tried(request, Fetch))


def _tried(request: Request, step: type[Send] | type[Fetch]) -> Steps[Reply]:
    num_tries = 0
    while True:
        # The service tells a request that is sent again by this count.
        attempt = request.with_headers(x_stainless_retry_count=str(num_tries))
        num_tries += 1
        log.debug("call method=%s url=%s try=%d", request.method, request.url, num_tries)
        error: APIError
        try:
            reply: Reply = yield step(attempt)
        except APIConnectionError as lost:
            if num_tries > request.max_retries or not request.is_repeatable:
                raise
            error, wait_s = lost, delay_s(num_tries)
        else:
            if reply.status < 400:
                return reply
            error = status_error(request, reply)
            may_retry = request.is_repeatable or reply.status in NOTHING_DONE
            if num_tries > request.max_retries or not may_retry:
                raise error
            if not should_retry(reply.status, reply.headers):
                raise error
            wait_s = delay_s(num_tries, reply.headers)
        log.info(
            "retry method=%s url=%s try=%d wait_s=%.2f reason=%s",
            request.method,
            request.url,
            num_tries,
            wait_s,
            error,
        )
        yield Sleep(wait_s)


def read_object(
    kind: type[Object], found: bytes | dict[str, Any], request: Request, reply: Reply
) -> Object:
    try:
        if isinstance(found, bytes):
            made = kind.model_validate_json(found)
        else:
            made = kind.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise _not_ours(f"{where}: {first['msg']}", request, reply) from error
    made._request_id = reply.request_id
    return made


def _not_ours(why: str, request: Request, reply: Reply) -> APIResponseValidationError:
    return APIResponseValidationError(
        f"The answer of {request.url} is not one of this API ({why}). "
        "Look whether the base URL is that of a Gristmill service.",
        request=request,
        reply=reply,
    )
